"""A store keeps the job's position as a note, and lets go of rows whose topics no longer exist."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from opensearchpy import OpenSearch
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from cdc.model.events import pack_version
from sinks.cache.sink import CacheSink
from sinks.errors import SinkError
from sinks.warehouse.statements import CATALOG
from tests.conformance.stores import SearchStore, SqlStore, url_of
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.conformance.trial import Trial
from tests.conformance.warehouse_store import warehouse
from tests.conftest import PostgresServer, new_database

pytestmark = pytest.mark.whole

V = pack_version(1, 1)
# A position in a source with many tables.
LONG = json.dumps({f'shop.Größe."it\'s" {number}': [number**5, number**7] for number in range(4_000)})


def test_a_fresh_store_has_no_note(sink_under_test: Trial) -> None:
    assert sink_under_test.sink.saved_position() is None


def test_a_note_is_kept_for_the_next_job_and_replaced(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.sink.save_position("first", None)
    restarted = trial.another()
    assert restarted.saved_position() == "first"
    restarted.save_position(LONG, "first")
    assert trial.another().saved_position() == LONG
    restarted.save_position(LONG, "first")  # the answer to the first attempt may have been lost
    restarted.save_position("third", LONG)
    assert trial.sink.saved_position() == "third"
    assert restarted.generation() == 1
    trial.check()  # the note is no row


def test_a_note_in_place_of_another_one_is_refused(sink_under_test: Trial) -> None:
    """The store has lost the note that the job wrote before, and the rows that it wrote until then."""
    trial = sink_under_test
    trial.sink.save_position("older", None)
    with pytest.raises(SinkError, match="may have lost its last writes"):
        trial.sink.save_position("newest", "newer")
    assert trial.sink.saved_position() == "older"


def test_the_next_generation_has_no_note(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.sink.save_position(LONG, None)
    trial.sink.begin_generation(1)
    assert trial.sink.saved_position() == LONG
    restarted = trial.another()
    restarted.begin_generation(2)
    assert restarted.saved_position() is None
    restarted.save_position("second", None)
    assert trial.another().saved_position() == "second"
    trial.check(restarted)


def test_the_note_of_a_store_that_lost_a_table_can_be_read(sink_under_test: Trial) -> None:
    """It says which topics the other rows came from."""
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1), ORDER_LINES.upsert(V + 1, order_id=1, line_no=1))
    trial.sink.save_position("text", None)
    trial.store.delete_table(ORDER_LINES.id)
    restarted = trial.another()
    assert restarted.generation() is None
    assert restarted.saved_position() == "text"


def test_a_deleted_store_has_no_note(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.sink.save_position("text", None)
    trial.store.delete_all()
    assert trial.another().saved_position() is None


def test_each_slot_has_a_note_of_its_own(sink_under_test: Trial) -> None:
    trial = sink_under_test
    if not trial.store.has_slots:
        pytest.skip("the store has no slots")
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.sink.save_position("serving", None)
    with closing(trial.store.open("g2")) as built:
        built.begin_generation(2)
        assert built.saved_position() is None
        built.save_position("built", None)
        assert trial.sink.saved_position() == "serving"
        assert built.saved_position() == "built"
        built.save_position("built further", "built")
        assert built.saved_position() == "built further"
    assert trial.another().saved_position() == "serving"
    trial.check()


@pytest.mark.promise(2)
def test_every_write_wins_against_rows_that_are_disowned(sink_under_test: Trial) -> None:
    """Their topics are gone. Versions begin again below those that the store holds, also those of deleted rows."""
    trial = sink_under_test
    trial.apply(*(CUSTOMERS.upsert(V + 1_000 + number, id=number, name="former") for number in range(5)))
    trial.apply(CUSTOMERS.delete(V + 2_000, id=0), ORDER_LINES.upsert(V + 2_001, order_id=1, line_no=1))
    restarted = trial.another()
    restarted.begin_generation(2)
    for _ in range(2):  # a job that was killed in between does it again
        restarted.reset_versions(CUSTOMERS.id)
    del trial.model.held[CUSTOMERS.id]
    trial.prepare(CUSTOMERS, restarted)
    former = [(stored.key["id"], stored.version) for stored in restarted.rows(CUSTOMERS.id)]
    keeps = isinstance(restarted, CacheSink)
    assert sorted(former) == ([(number, 0) for number in (1, 2, 3, 4)] if keeps else [])
    trial.apply(*(CUSTOMERS.upsert(V + number, id=number, name="new") for number in (0, 1, 2, 9)), sink=restarted)
    trial.apply(CUSTOMERS.delete(V + 20, id=2), sink=restarted)
    assert restarted.sweep(CUSTOMERS.id, 1) == (2 if keeps else 0)
    trial.check(restarted)
    assert restarted.sweep(CUSTOMERS.id, 1) == 0
    trial.apply(CUSTOMERS.upsert(V + 30, id=3, name="comes after the sweep"), sink=restarted)
    trial.check(restarted)


def test_a_table_that_the_store_does_not_hold_can_be_disowned(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.sink.reset_versions(CUSTOMERS.id)
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.check()


@pytest.mark.parametrize("is_written_again", [False, True])
def test_a_warehouse_table_that_was_rolled_back_has_lost_writes(
    request: pytest.FixtureRequest, unique: str, is_written_again: bool
) -> None:
    with warehouse(request, unique) as store, closing(Trial(store)) as trial:
        trial.apply(CUSTOMERS.upsert(V, id=1))
        trial.sink.save_position("older", None)
        rows = store.place.place(CUSTOMERS.id).rows
        former = next(store.engine().history(rows)).id
        trial.apply(CUSTOMERS.upsert(V + 1, id=2))
        trial.sink.save_position("newer", "older")
        assert trial.another().saved_position() == "newer"
        name = ".".join(rows)
        store.engine().run(f"CALL {CATALOG}.system.rollback_to_snapshot(table => '{name}', snapshot_id => {former})")
        if is_written_again:
            trial.sink.apply([CUSTOMERS.upsert(V + 2, id=3)])
            with pytest.raises(SinkError, match="may have lost its last writes"):
                trial.sink.save_position("newest", "newer")
        assert trial.another().saved_position() is None
        assert trial.sink.saved_position() is None


def test_an_older_copy_of_a_file_has_the_note_that_belongs_to_its_rows(tmp_path: Path) -> None:
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    with closing(SqlStore(f"sqlite:///{file}")) as store:
        with closing(Trial(store)) as trial:
            trial.apply(CUSTOMERS.upsert(V, id=1))
            trial.sink.save_position("older", None)
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            trial.apply(CUSTOMERS.upsert(V + 1, id=2))
            trial.sink.save_position("newer", "older")
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(file)) as target:
            source.backup(target)
        with closing(store.open()) as restarted:
            assert restarted.generation() == 1
            assert restarted.saved_position() == "older"
            with pytest.raises(SinkError, match="may have lost its last writes"):
                restarted.save_position("newest", "newer")


def test_a_file_that_was_replaced_under_the_job_is_noticed(tmp_path: Path) -> None:
    """Its connections would go on to write the file that has no name any more."""
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    with closing(SqlStore(f"sqlite:///{file}")) as store, closing(Trial(store)) as trial:
        worker = trial.another()
        trial.apply(CUSTOMERS.upsert(V, id=1))
        trial.prepare(CUSTOMERS, worker)
        trial.sink.save_position("older", None)
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        trial.apply(CUSTOMERS.upsert(V + 1, id=2), sink=worker)
        for part in ("-wal", "-shm"):
            Path(f"{file}{part}").unlink()
        copy.replace(file)
        with pytest.raises(SinkError, match="may have lost its last writes"):
            worker.apply([CUSTOMERS.upsert(V + 2, id=3)])
        with pytest.raises(SinkError, match="may have lost its last writes"):
            trial.sink.save_position("newer", "older")
        restarted = trial.another()
        trial.prepare(CUSTOMERS, restarted)
        assert (restarted.generation(), restarted.saved_position()) == (1, "older")
        assert [stored.key["id"] for stored in restarted.rows(CUSTOMERS.id)] == [1, 3]


def test_an_older_copy_of_a_database_has_the_note_that_belongs_to_its_rows(postgres: PostgresServer) -> None:
    with (
        new_database(postgres) as dsn,
        psycopg.connect(postgres.superuser_dsn, autocommit=True) as superuser,
        closing(SqlStore(url_of(dsn))) as store,
    ):
        database = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
        copy = sql.Identifier(f"{conninfo_to_dict(dsn)['dbname']}copy")
        with closing(Trial(store)) as trial:
            trial.apply(CUSTOMERS.upsert(V, id=1))
            trial.sink.save_position("older", None)
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}")
        superuser.execute(made.format(copy, database, sql.Identifier(str(conninfo_to_dict(dsn)["user"]))))
        with closing(store.open()) as sink:
            sink.prepare(CUSTOMERS.schema)
            sink.apply([CUSTOMERS.upsert(V + 1, id=2)])
            superuser.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
            superuser.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(copy, database))
            with pytest.raises(SinkError, match="may have lost its last writes"):
                sink.save_position("newer", "older")  # the copy has the note before, and lacks the row
            assert sink.saved_position() == "older"
        with closing(store.open()) as restarted:
            assert (restarted.generation(), restarted.saved_position()) == (1, "older")
            restarted.prepare(CUSTOMERS.schema)
            assert [stored.key["id"] for stored in restarted.rows(CUSTOMERS.id)] == [1]
            with pytest.raises(SinkError, match="may have lost its last writes"):
                restarted.save_position("newest", "newer")
            restarted.save_position("continued", "older")
            assert restarted.saved_position() == "continued"


def test_a_search_index_that_was_restored_from_a_snapshot_is_not_the_one_that_was_filled(
    request: pytest.FixtureRequest, unique: str
) -> None:
    """A snapshot that is restored into a closed index keeps the index's UUID."""
    url = request.getfixturevalue("opensearch")
    with closing(OpenSearch(url, timeout=60)) as client, closing(SearchStore(url, unique)) as store:
        with closing(Trial(store)) as trial:
            trial.apply(CUSTOMERS.upsert(V, id=1), ORDER_LINES.upsert(V + 1, order_id=1, line_no=1))
            index = f"{unique}.public.customers.documents"
            repository = {"type": "fs", "settings": {"location": unique}}
            client.snapshot.create_repository(repository=unique, body=repository)
            waits = {"wait_for_completion": "true"}
            client.snapshot.create(repository=unique, snapshot="older", body={"indices": index}, params=waits)
            trial.apply(CUSTOMERS.upsert(V + 2, id=2))
            trial.sink.save_position("text", None)
            assert trial.another().generation() == 1
            former = client.indices.get_settings(index=index)[index]["settings"]["index"]["uuid"]
            client.indices.close(index=index)
            client.snapshot.restore(repository=unique, snapshot="older", body={"indices": index}, params=waits)
            assert client.indices.get_settings(index=index)[index]["settings"]["index"]["uuid"] == former
            assert trial.sink.generation() is None
            restarted = trial.another()
            restarted.begin_generation(2)
            trial.prepare(CUSTOMERS, restarted)
            assert trial.another().generation() == 2
        client.snapshot.delete_repository(repository=unique)

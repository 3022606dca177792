"""Record keys that are chosen: columns that are not the table's primary key, with and without an index on them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from pydantic import SecretStr

from cdc.config.settings import SnapshotConfig, SourceConfig
from cdc.model.errors import SourceError
from cdc.postgres.source import check_source
from tests.checker.records import parse
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.waiting import eventually

CODES, VISITS = "public.codes", "public.visits"
KEYS = {CODES: ["code"], VISITS: ["place", "day"]}
ROWS = 300
TABLES: LiteralString = """
CREATE TABLE codes (id int PRIMARY KEY, code text COLLATE "C" NOT NULL UNIQUE, name text);
CREATE TABLE visits (place text NOT NULL, day date NOT NULL, count int);
ALTER TABLE codes REPLICA IDENTITY FULL;
ALTER TABLE visits REPLICA IDENTITY FULL;
"""


@pytest.fixture
def chosen(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """One table whose key has a unique index, and one that has no index at all."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [CODES, VISITS], KEYS) as made:
        made.settings = {"snapshot": {"method": "consistent", "chunk_rows_max": 50}}
        made.query("INSERT INTO codes SELECT n, 'code ' || n, 'old' FROM generate_series(1, %s::int) AS n", ROWS)
        made.query(
            "INSERT INTO visits SELECT 'place ' || n %% 3, date '2026-01-01' + n, n"
            "  FROM generate_series(1, %s::int) AS n",
            ROWS,
        )
        yield made


def change(captured: Captured) -> None:
    with captured.connect() as connection:
        connection.execute("UPDATE codes SET code = 'moved ' || id WHERE id % 50 = 0")
        connection.execute("UPDATE codes SET id = -id WHERE id % 70 = 0")
        connection.execute("DELETE FROM codes WHERE id = (SELECT min(id) FROM codes WHERE id > 0)")
        connection.execute("UPDATE visits SET count = -1 WHERE place = 'place 1'")
        connection.execute("UPDATE visits SET day = day + 1000 WHERE place = 'place 2' AND count % 50 = 0")
        connection.execute("DELETE FROM visits WHERE day = (SELECT min(day) FROM visits)")


def loaded(captured: Captured, table: str) -> int:
    return sum(c.op == "r" and c.table == table for c in captured.changes())


@pytest.mark.promise(1)
@pytest.mark.promise(4)
def test_rows_are_published_under_the_chosen_keys_read_again_where_that_can_be_and_healed(chosen: Captured) -> None:
    capture = chosen.start()
    chosen.await_caught_up()
    change(chosen)
    chosen.await_caught_up()
    keys = {(c.table, *c.key) for c in chosen.judge().changes}
    assert keys == {(CODES, "code"), (VISITS, "place", "day")}

    refused = chosen.ask("snapshot", tables=(VISITS,))
    assert not refused.is_accepted
    assert refused.message.startswith("can't be read in chunks: public.visits (place, day): no unique index")
    begun = chosen.ask("snapshot")
    assert begun.tables == (CODES,)
    assert begun.message.startswith("begun; can't be read in chunks: public.visits")
    chosen.await_caught_up()
    assert (loaded(chosen, CODES), loaded(chosen, VISITS)) == (2 * ROWS - 1, ROWS)
    chosen.judge()

    assert capture.terminate() == 0
    chosen.drop_slot()
    change(chosen)  # nobody sees this
    capture = chosen.start()
    capture.await_said("state GAP")
    assert chosen.ask("heal").is_accepted
    eventually(lambda: chosen.epoch() == 2 and "streaming" in capture.said(), 90.0, "the gap is healed")
    change(chosen)
    chosen.await_caught_up()
    chosen.judge()


@pytest.fixture
def audit(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A table that is to have no key, with two equal rows."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, []) as made:
        made.tables, made.keys = [VISITS], {VISITS: []}
        made.query("ALTER TABLE visits ADD secret text DEFAULT 'not for anybody'")
        made.settings = {
            "source": {"exclude_columns": [r"public\.visits\.secret"]},
            "snapshot": {"method": "consistent"},
            "format": {"skipped.operations": "none"},
        }
        made.query("INSERT INTO visits VALUES ('here', '2026-01-01', 1), ('here', '2026-01-01', 1)")
        yield made


def test_a_table_without_a_key_is_published_without_keys_in_its_order(audit: Captured) -> None:
    audit.start()
    audit.await_caught_up()
    with audit.connect() as connection:
        connection.execute("INSERT INTO visits VALUES ('here', '2026-01-01', 2)")
        connection.execute("UPDATE visits SET count = 3 WHERE count = 1")
        connection.execute("DELETE FROM visits WHERE count = 2")
        connection.execute("TRUNCATE visits")
    audit.await_caught_up()
    records = audit.records(VISITS)
    assert {record.key for record in records} == {b""}
    outcome = [parse(record.value or b"") for record in records]
    row = {"place": "here", "day": "2026-01-01", "count": 1}
    assert [(value["op"], value["before"], value["after"]) for value in outcome] == [
        ("r", None, row),
        ("r", None, row),
        ("c", None, row | {"count": 2}),
        ("u", row, row | {"count": 3}),
        ("u", row, row | {"count": 3}),
        ("d", row | {"count": 2}, None),
        ("t", None, None),
    ]
    assert [value["source"]["seq"] for value in outcome] == [1, 2, 3, 4, 5, 6, 7]
    assert all(
        b"secret" not in (record.value or b"") for topic in ("control", VISITS) for record in audit.records(topic)
    )
    refused = audit.ask("snapshot", tables=(VISITS,))
    assert refused.message.startswith("can't be read in chunks: public.visits")


def test_a_table_that_only_a_new_slot_can_take_in_stops_alone_until_healing_is_asked_for(audit: Captured) -> None:
    audit.tables, audit.keys = [CODES], {}
    audit.settings |= {"source": {}}
    first = audit.start()
    audit.await_caught_up()
    assert first.terminate() == 0
    audit.tables, audit.keys = [CODES, VISITS], {VISITS: []}
    capture = audit.start()
    eventually(lambda: audit.states().get(VISITS, {}).get("status") == "stopped", 90.0, "it stops")
    assert "its rows can't be read in chunks" in audit.states()[VISITS]["message"]
    audit.query("INSERT INTO codes (id, code) VALUES (1, 'beside')")
    audit.await_caught_up()
    assert loaded(audit, CODES) == 0, "the other is streamed, and not read again"
    assert audit.ask("heal").is_accepted
    eventually(lambda: len(audit.records(VISITS)) == 2, 90.0, lambda: f"its rows are published: {capture.said()}")


# ---- what can't be a key


@pytest.fixture
def source(fresh_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def outcome(connection: psycopg.Connection, table: str, *columns: str, **snapshot: Any) -> str:
    """What `cdc check` says; empty when all is well."""
    dsn = SecretStr(connection.info.dsn)
    try:
        check_source(SourceConfig(dsn=dsn, tables=(table,), key_columns={table: columns}), SnapshotConfig(**snapshot))
    except SourceError as error:
        return str(error)
    return ""


def test_a_key_without_a_unique_index_is_for_consistent_loads_only(source: psycopg.Connection) -> None:
    assert outcome(source, CODES, "code") == ""
    message = outcome(source, VISITS, "place", "day")
    assert "can't be read in chunks: no unique index has exactly its key columns (place, day), in this order" in message
    assert (
        'CREATE UNIQUE INDEX CONCURRENTLY ON "public"."visits" ("place", "day"); or snapshot.method: consist' in message
    )
    assert outcome(source, VISITS, "place", "day", method="consistent") == ""
    source.execute("CREATE UNIQUE INDEX ON visits (day, place)")
    source.execute("CREATE UNIQUE INDEX ON visits (place, day) WHERE count > 0")
    source.execute("CREATE UNIQUE INDEX ON visits (place, day, (count + 1))")
    source.execute("ALTER TABLE visits ADD UNIQUE (place, day) DEFERRABLE")
    assert "in this order" in outcome(source, VISITS, "place", "day"), "none of these will do"
    source.execute("CREATE UNIQUE INDEX ON visits (place, day) INCLUDE (count)")
    assert outcome(source, VISITS, "place", "day") == ""


def test_no_key_is_for_tables_that_may_still_be_updated_or_never_are(source: psycopg.Connection) -> None:
    assert outcome(source, VISITS, method="consistent") == ""
    assert "can't be read in chunks: it has no key" in outcome(source, VISITS)
    source.execute("ALTER TABLE visits REPLICA IDENTITY DEFAULT")
    assert "no unique index of table public.visits has exactly its key columns (none)" in outcome(source, VISITS)
    source.execute("ALTER TABLE visits REPLICA IDENTITY NOTHING")
    assert outcome(source, VISITS, method="consistent") == ""


@pytest.mark.parametrize(
    ("statement", "columns", "expected"),
    [
        ("ALTER TABLE codes REPLICA IDENTITY DEFAULT", ["code"], "key column code of table public.codes is not in its"),
        ("ALTER TABLE codes ALTER code DROP NOT NULL", ["code"], "key column code of table public.codes may be NULL"),
        ("SELECT 1", ["code", "no_such"], "table public.codes has no column no_such"),
        ("ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_code_key", ["code"], ""),
        ("ALTER TABLE codes REPLICA IDENTITY DEFAULT", ["id"], ""),
    ],
)
def test_a_key_lies_in_the_replica_identity_and_is_never_null(
    source: psycopg.Connection, statement: LiteralString, columns: list[str], expected: str
) -> None:
    source.execute(statement)
    message = outcome(source, CODES, *columns)
    assert expected in message
    assert bool(expected) == bool(message)

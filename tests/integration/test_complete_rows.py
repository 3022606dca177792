"""Large values that updates leave out of the log, on real servers: every record in the end holds the whole row."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest

from tests.checker.records import Change, Record, changes_of, parse
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.hole_workload import SCHEMA, TABLES, TYPES, HoleClient, fill
from tests.support.hot_workload import FrozenCommits, thaw
from tests.support.waiting import eventually
from tests.support.workload import Workload

TYPED: Final = "public.typed"


def typed_schema() -> LiteralString:
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(TYPES))
    external = ", ".join(f"ALTER c{i} SET STORAGE EXTERNAL" for i in range(len(TYPES)))
    return (
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN long_text AS text;"
        f"CREATE TABLE typed (id int PRIMARY KEY, n int, {columns}); ALTER TABLE typed {external};"
    )


# Debezium's form of every type, those that it does not know too, each record with its schema.
WITH_SCHEMAS: Final = {"profile": "debezium", "include.unknown.datatypes": True, "schemas.enable": True}


@pytest.fixture(params=[("postgres", {}), ("postgres16", WITH_SCHEMAS)], ids=["readable", "debezium with schemas"])
def typed(request: pytest.FixtureRequest, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Captured]:
    name, form = request.param
    server: PostgresServer = request.getfixturevalue(name)
    with (
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, unique, tmp_path, typed_schema(), [TYPED]) as made,
    ):
        made.settings = {"format": form}
        yield made


@pytest.fixture
def holed(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        made.settings = {"capture": {"transaction_rows_max": 200}, "snapshot": {"chunk_rows_max": 50, "lag_s_max": 30}}
        yield made


@pytest.mark.combination("encodings", "json", "debezium", "capture")
def test_a_value_of_every_type_is_read_as_it_would_have_been_logged(typed: Captured) -> None:
    with typed.connect() as connection:
        process = typed.start()
        process.await_said("table published")
        values = ", ".join(TYPES.values())
        connection.execute(f"INSERT INTO typed SELECT n, 0, {values} FROM generate_series(1, 2) AS n")
        typed.await_caught_up()  # so that the batch of the insert is no help
        connection.execute("UPDATE typed SET n = 1 WHERE id = 1")
        connection.execute("UPDATE typed SET id = 3 WHERE id = 2")
        typed.await_caught_up()
    if not typed.settings["format"]:
        typed.judge()
    changes = sorted(changes_of(map(payload, typed.records(TYPED))), key=lambda change: change.version)
    inserted, _, updated, _, moved = changes
    assert updated.op == "u" and moved.op == "c"
    # Numbers and the like have no storage but their own: what was short after all was logged.
    assert len(updated.filled) > len(TYPES) - 3, sorted(updated.filled)
    for change in (updated, moved):
        assert not change.unchanged
        assert change.after is not None and inserted.after is not None
        assert {c: v for c, v in change.after.items() if c not in ("id", "n")} == {
            c: v for c, v in inserted.after.items() if c not in ("id", "n")
        }


def payload(record: Record) -> Record:
    """Without a schema, if it has one."""
    key = parse(record.key)
    if "payload" not in key:
        return record
    value = None if record.value is None else json.dumps(parse(record.value)["payload"], default=float).encode()
    return replace(record, key=json.dumps(key["payload"]).encode(), value=value)


@pytest.mark.promise(6)
def test_a_commit_that_stays_invisible_holds_nobody_up_and_its_rows_are_completed_later(holed: Captured) -> None:
    with (
        holed.connect() as connection,
        holed.connect() as frozen,
        psycopg.connect(holed.superuser_dsn, autocommit=True) as superuser,
    ):
        fill(connection)
        holed.start()
        holed.await_caught_up()
        connection.execute("SET synchronous_commit = local")
        superuser.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        superuser.execute("SELECT pg_reload_conf()")
        eventually(lambda: frozen.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",), 10.0)
        waiting = threading.Thread(target=frozen.execute, args=("UPDATE pages SET n = 7 WHERE id < 4",))
        waiting.start()
        try:
            eventually(lambda: len(news(holed, 7)) == 3, 20.0, "what is frozen is published without its large values")
            connection.execute("UPDATE pages SET n = 8 WHERE id > 20 AND id < 24")
            eventually(lambda: len(news(holed, 8)) == 3, 20.0, "others go on")
            assert holed.holed() == ["public.pages"]
        finally:
            thaw(superuser)
            waiting.join()
        holed.await_caught_up()
    assert {change.unchanged for change in news(holed, 7)} == {frozenset({"body", "raw", "doc"})}
    assert {change.filled for change in news(holed, 8)} == {frozenset({"body", "raw", "doc"})}
    report = holed.judge()
    completed = [change for change in report.changes if change.op == "r" and (change.after or {}).get("n") == 7]
    assert sorted(change.key["id"] for change in completed) == [1, 2, 3]


def news(captured: Captured, n: int) -> list[Change]:
    """Updates of pages that set this."""
    return [c for c in captured.changes() if c.op == "u" and c.table == TABLES[0] and (c.after or {}).get("n") == n]


@pytest.mark.promise(6)
@pytest.mark.invariant(7)
def test_under_writers_frozen_commits_and_kills_every_last_record_is_the_whole_row(holed: Captured) -> None:
    with holed.connect() as connection:
        fill(connection)
    process = holed.start()
    process.await_said("streaming")
    writers: Any = Workload(holed.dsn, seed=5, clients=8, pause_s=0.01, client=HoleClient)
    with writers as clients, FrozenCommits(holed.superuser_dsn, 5, frozen_s=(0.2, 1.5), thawed_s=(0.1, 0.4)) as freezes:
        for kill in range(3):
            until = clients.committed + 150
            eventually(lambda until=until: clients.committed > until, 60.0)  # type: ignore[misc]
            if kill < 2:
                process.kill()
                process = holed.start()
        assert freezes.count > 2
    holed.await_caught_up()
    report = holed.judge()
    assert sum(bool(change.filled) for change in report.changes) > 50
    assert sum(bool(change.unchanged) for change in report.changes) > 5

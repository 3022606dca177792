"""Large values of every type, their columns renamed and dropped, under writers, frozen commits and kills.

    python -m tests.faults.toast_campaign --minutes 30 --folder .watershed/toast-campaign

It is made of episodes, each a seed with a database and topics of its own: a table for each replica identity with a
column of every type whose values PostgreSQL keeps out of line, 8 writers that mostly leave them alone, and somebody who
renames, drops and adds columns. At rest every topic's last record of each key must be the whole row, equal to the
source. Each episode is a line in `episodes.jsonl`; a run that is started again goes on behind the last one.
"""

import random
import secrets
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.checker.history import last_rows_are_whole
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import Captured, under_capture
from tests.support.hole_workload import TYPES
from tests.support.hot_workload import FrozenCommits, thaw
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

WRITERS: Final = 8
KILLS: Final = 6
ROWS: Final = 40
ROUND_S: Final = 6.0  # between two kills
IDENTITIES: Final = {
    "by_key": "DEFAULT",
    "by_row": "FULL",
    "by_index": "USING INDEX by_index_code",
}
VALUES: Final = tuple(TYPES.values())
# What a statement may end in while somebody alters its table: the writer goes on with another.
PASSING: Final = (
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.FeatureNotSupported,  # a cached plan has other columns
)


def made(connection: psycopg.Connection) -> None:
    """The tables, with rows."""
    connection.execute("CREATE TYPE pair AS (a int, b text); CREATE DOMAIN long_text AS text")
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(TYPES))
    for table, identity in IDENTITIES.items():
        _run(connection, f"CREATE TABLE {table} (id int PRIMARY KEY, code int NOT NULL UNIQUE, n int, {columns})")
        _run(connection, f"ALTER TABLE {table} RENAME CONSTRAINT {table}_code_key TO {table}_code")
        _run(connection, f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        for i in range(len(TYPES)):
            _run(connection, f"ALTER TABLE {table} ALTER c{i} SET STORAGE EXTERNAL")
        values = ", ".join(VALUES)
        _run(connection, f"INSERT INTO {table} SELECT i, i, 0, {values} FROM generate_series(1, {ROWS}) AS i")


def _run(connection: psycopg.Connection, statement: str) -> None:
    connection.execute(statement)


class Others:
    """Writers and one who alters, until the with statement ends."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self._error: Exception | None = None
        self.committed = self.altered = 0
        kinds = [self._write] * WRITERS + [self._alter]
        self._threads = [
            threading.Thread(target=self._until_over, args=(step, random.Random(seed * 100 + number)))
            for number, step in enumerate(kinds)
        ]

    def __enter__(self) -> "Others":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _until_over(self, step: Any, chance: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.prepare_threshold = None
                while not self._over.is_set():
                    step(connection, chance)
        except Exception as error:  # noqa: BLE001 - raised where the with statement ends
            self._error = error

    def _write(self, connection: psycopg.Connection, chance: random.Random) -> None:
        table = chance.choice(list(IDENTITIES))
        try:
            with connection.transaction():
                for _ in range(chance.randint(1, 3)):
                    _run(connection, _statement(table, chance))
                if chance.random() < 0.2:
                    with connection.transaction(force_rollback=True):  # a savepoint
                        _run(connection, _statement(table, chance))
                    _run(connection, f"UPDATE {table} SET n = n + 1 WHERE id = {chance.randint(1, ROWS)}")
            self.committed += 1
        except PASSING:
            pass
        self._over.wait(chance.uniform(0.0, 0.03))

    def _alter(self, connection: psycopg.Connection, chance: random.Random) -> None:
        table, i = chance.choice(list(IDENTITIES)), chance.randrange(len(TYPES))
        kind, value = list(TYPES)[i], VALUES[i]
        try:
            match chance.randrange(3):
                case 0:
                    _run(connection, f"ALTER TABLE {table} RENAME c{i} TO d{i}")
                case 1:
                    _run(connection, f"ALTER TABLE {table} RENAME d{i} TO c{i}")
                case _:
                    with connection.transaction():
                        _run(connection, f"ALTER TABLE {table} DROP c{i}")
                        _run(connection, f"ALTER TABLE {table} ADD c{i} {kind}")
                        _run(connection, f"ALTER TABLE {table} ALTER c{i} SET STORAGE EXTERNAL")
                        _run(connection, f"UPDATE {table} SET c{i} = {value} WHERE id % 3 = 0")
            self.altered += 1
        except (*PASSING, psycopg.errors.DuplicateColumn):
            pass
        self._over.wait(chance.uniform(0.2, 1.5))


def _statement(table: str, chance: random.Random) -> str:
    row, i = chance.randint(1, ROWS), chance.randrange(len(TYPES))
    match chance.randrange(8):
        case 0:
            return f"UPDATE {table} SET c{i} = {VALUES[i]}, n = n + 1 WHERE id = {row}"
        case 1:
            return f"UPDATE {table} SET c{i} = NULL WHERE id = {row}"
        case 2:
            return f"UPDATE {table} SET id = {row + ROWS} WHERE id = {row}"
        case 3:
            return f"UPDATE {table} SET id = {row}, n = n + 1 WHERE id = {row + ROWS}"
        case 4:
            return f"DELETE FROM {table} WHERE id = {row}"
        case 5:
            return (
                f"INSERT INTO {table} (id, code, n, c{i}) VALUES ({row}, {row}, 0, {VALUES[i]}) ON CONFLICT DO NOTHING"
            )
        case _:
            return f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN {row} AND {row + 2}"


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        thaw(connection)
    folder.mkdir(parents=True)
    name = f"l{seed}_{secrets.token_hex(3)}"
    tables = [f"public.{table}" for table in IDENTITIES]
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, "SELECT", []) as captured:
        captured.tables = tables
        captured.settings = {"snapshot": {"chunk_rows_max": 40, "workers": 2}}
        with captured.connect() as connection:
            made(connection)
        process = captured.start()
        captured.await_caught_up()
        with Others(dsn, seed) as others:
            freezing = FrozenCommits(captured.superuser_dsn, seed, frozen_s=(0.1, 2.0), thawed_s=(0.05, 1.0))
            with freezing as freezes:
                for _ in range(KILLS):
                    until = time.monotonic() + ROUND_S
                    eventually(lambda until=until: time.monotonic() > until, 600.0)  # type: ignore[misc]
                    process.kill()
                    process = captured.start()
            # Nobody waits for the standby any more, so that the others come to their end.
        return _judged(captured, seed, tables, others, freezes.count, folder)


def _judged(
    captured: Captured, seed: int, tables: list[str], others: Others, freezes: int, folder: Path
) -> dict[str, Any]:
    differing: dict[str, str] = {}

    def is_equal() -> bool:
        captured.await_caught_up(300.0)
        differing.clear()
        differing.update(captured.unlike(tables))
        return not differing

    try:
        eventually(is_equal, 300.0)
    except AssertionError:
        assert differing, "or it had another reason"
    changes = captured.changes()
    holes = [] if differing else list(last_rows_are_whole(changes))
    states = {record["status"] for record in captured.states().values()}
    if not differing and not holes and states == {"captured"}:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "transactions": others.committed,
        "altered": others.altered,
        "freezes": freezes,
        "kills": KILLS,
        "changes": len(changes),
        "filled": sum(bool(change.filled) for change in changes),
        "unfilled": sum(bool(change.unchanged) for change in changes),
        "states": sorted(states),
        "differing": differing,
        "holes": holes[:10],
    }


def is_true(reported: dict[str, Any]) -> bool:
    """Returns whether an episode that reported this found no fault."""
    return not reported["differing"] and not reported["holes"] and reported["states"] == ["captured"]


if __name__ == "__main__":
    sys.exit(
        run_episodes(
            __doc__,
            "toast-campaign",
            episode,
            lambda reported: not reported["differing"] and not reported["holes"] and reported["states"] == ["captured"],
        )
    )

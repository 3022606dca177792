"""A bank: transfers between the accounts of two tables. At no position of the source does the sum of all balances
differ, so a reader that sees another sum sees a transaction in part."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, LiteralString

import psycopg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from tests.conftest import INTERPRETED
from tests.support.captured import Captured
from tests.support.waiting import eventually

TABLES: Final = ("public.checking", "public.savings")
ACCOUNTS: Final = 20  # in each table
SUM: Final = 2 * ACCOUNTS * 1_000
SCHEMA: Final[LiteralString] = """
CREATE TABLE checking (id bigint PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE savings (id bigint PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO checking SELECT n, 1000 FROM generate_series(1, 20) n;
INSERT INTO savings SELECT n, 1000 FROM generate_series(1, 20) n;
"""
TOTAL: Final[LiteralString] = (
    "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM savings), "
    "(SELECT sum(id * balance) FROM checking)"
)


def settings(folder: Path, target: str) -> dict[str, Any]:
    """Sections of the configuration file. `target`: the address of the SQL store `books`; there is a warehouse `lake`,
    too."""
    return {
        "sinks": {
            "books": {
                "type": "sql",
                "url": target,
                "consistency": "transactional",
                "shapes": {"public.*": {"table": "public.{table}"}},
            },
            "lake": {
                "type": "warehouse",
                "catalog_uri": f"jdbc:sqlite:{folder}/warehouse/catalog.db",
                "location": f"{folder}/warehouse/tables",
                "tag_interval_s": 1,
                "tags_kept": 10,
            },
        },
        "spark": {
            "checkpoint_location": str(folder / "checkpoints"),
            "warehouse_trigger_ms": 500,
            "options": INTERPRETED,
        },
        "capture": {"transaction_rows_max": 50},  # larger transactions are published in parts
    }


def transfer(connection: psycopg.Connection, random: Random) -> None:
    """A transaction: some transfers in either direction, an account that is closed and opened again, or one that
    touches every account."""
    kind = random.random()
    with connection.transaction():
        if kind < 0.02:
            connection.execute("UPDATE checking SET balance = balance - 1")
            connection.execute("UPDATE savings SET balance = balance + 1")
        elif kind < 0.04:
            connection.execute("UPDATE checking SET balance = balance + 1 FROM generate_series(1, 3)")
            for _ in range(3):  # more rows than a Kafka transaction takes
                connection.execute("UPDATE savings SET balance = balance - 1")
                connection.execute("UPDATE checking SET balance = balance + 1")
            connection.execute("UPDATE savings SET balance = balance - 1")
        elif kind < 0.1:
            key = random.randint(1, ACCOUNTS)
            balance = connection.execute("DELETE FROM checking WHERE id = %s RETURNING balance", (key,)).fetchone()
            connection.execute(
                "UPDATE savings SET balance = balance + %s WHERE id = %s", (balance[0] if balance else 0, key)
            )
            connection.execute("INSERT INTO checking VALUES (%s, 0)", (key,))
        else:
            for _ in range(random.randint(1, 3)):
                amount, one, other = random.randint(-100, 100), random.randint(1, ACCOUNTS), random.randint(1, ACCOUNTS)
                connection.execute("UPDATE checking SET balance = balance - %s WHERE id = %s", (amount, one))
                connection.execute("UPDATE savings SET balance = balance + %s WHERE id = %s", (amount, other))


class Reads:
    """What readers have seen."""

    def __init__(self) -> None:
        self.count = 0
        self.states: set[Any] = set()  # different ones
        self.wrong: list[Any] = []
        self.failed: str = ""  # a reader that ended

    def add(self, total: Any, state: Any) -> None:
        self.count += 1
        self.states.add(state)
        if total != SUM:
            self.wrong.append((total, state))


def sql_reader(dsn: str) -> Callable[[Reads], None]:
    """Reads both tables in one statement, which has one snapshot of the database."""

    def read(reads: Reads) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(20):
                total, state = connection.execute(TOTAL).fetchone() or (None, None)
                reads.add(None if total is None else int(total), state)

    return read


def tag_reader(folder: Path, namespace: str) -> Callable[[Reads], None]:
    """Reads both tables of a warehouse by each tag that both have."""

    def read(reads: Reads) -> None:
        catalog = SqlCatalog("watershed", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "tables").as_uri())
        try:
            tables = [catalog.load_table((namespace, *name.split("."))) for name in TABLES]
            for tag in sorted({*tables[0].refs()} & {*tables[1].refs()} - {"main"}):
                total = 0
                for table in tables:
                    named = table.snapshot_by_name(tag)
                    assert named is not None
                    rows = table.scan(snapshot_id=named.snapshot_id).to_arrow()
                    total += sum(rows.column("balance").to_pylist())
                reads.add(total, tag)
        except (NoSuchTableError, NoSuchNamespaceError):
            return  # not created yet
        except FileNotFoundError:
            if all(tag in catalog.load_table(table.name()).refs() for table in tables):
                raise  # else the tag is gone, and its files with it
        finally:
            catalog.close()

    return read


@contextmanager
def running(works: dict[str, Callable[[], None]], reads: Reads, pause_s: float) -> Iterator[None]:
    """Repeats each work in a thread within this context, with a pause between."""
    over = threading.Event()

    def run(name: str, work: Callable[[], None]) -> None:
        try:
            while not over.wait(pause_s):
                work()
        except Exception as error:  # noqa: BLE001 - said by what waits for progress, or below
            reads.failed = f"{name}: {type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=entry, daemon=True) for entry in works.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert not reads.failed, reads.failed


@contextmanager
def transfers(captured: Captured, seed: int, reads: Reads, pause_s: float = 0.003) -> Iterator[None]:
    """Transfers money within this context."""
    random = Random(seed)
    with captured.connect() as connection, running({"transfers": lambda: transfer(connection, random)}, reads, pause_s):
        yield


def await_equal(captured: Captured, read: Callable[[Reads], None], deadline_s: float = 120.0) -> None:
    """The store has the source's newest state."""
    wanted = captured.query(TOTAL)[0][1]

    def is_equal() -> bool:
        seen = Reads()
        read(seen)
        return {wanted} == seen.states

    eventually(is_equal, deadline_s, "the store has the source's state")

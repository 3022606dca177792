"""A workload that publishes events by both ways, with a journal of what committed, and the judge that compares the
topics with the journal.

Each event takes the next number of its aggregate under the aggregate's row lock, which its transaction holds to the
end: the numbers of an aggregate are in commit order, whoever wrote them."""

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import psycopg
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from tests.checker.records import Record, read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from watershed.client.outbox_migrations import Names, migrate

ORDERS: Final = "public.orders"
AGGREGATES: Final = 12
SCHEMA: LiteralString = """
CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL);
CREATE TABLE aggregates (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE journal (event uuid PRIMARY KEY, aggregate int NOT NULL, n int NOT NULL);
INSERT INTO aggregates SELECT generate_series(0, 11);
"""
_EVENT: LiteralString = """
WITH next AS (UPDATE aggregates SET n = n + 1 WHERE id = %s RETURNING id, n),
     entry AS (INSERT INTO journal SELECT gen_random_uuid(), id, n FROM next RETURNING *)
"""
TABLE: LiteralString = (
    _EVENT + "INSERT INTO cdc.outbox (id, aggregatetype, aggregateid, type, payload)"
    " SELECT event, 'thing', aggregate, 'Counted', jsonb_build_object('n', n) FROM entry"
)
MESSAGE: LiteralString = (
    _EVENT
    + "SELECT cdc.publish('thing', aggregate::text, 'Counted', jsonb_build_object('n', n), id => event) FROM entry"
)


class Writers:
    """Threads that write until the block ends. `committed` counts transactions."""

    def __init__(self, dsn: str, seed: int, count: int = 8) -> None:
        self.committed = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write, args=(dsn, seed * 100 + n)) for n in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures and error is None:
            raise self._failures[0]

    def _write(self, dsn: str, seed: int) -> None:
        chance = random.Random(seed)
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not self._stop.wait(0.005):
                    if transaction(connection, chance):
                        with self._lock:
                            self.committed += 1
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for this one
            self._failures.append(error)


def transaction(connection: psycopg.Connection, chance: random.Random) -> bool:
    """One, of some events and rows; whether it was committed. Aggregates are locked in order, so none waits in turn."""
    commits = chance.random() < 0.8
    with connection.transaction(force_rollback=not commits):
        for aggregate in sorted(chance.sample(range(AGGREGATES), chance.randrange(1, 4))):
            with connection.transaction(force_rollback=chance.random() < 0.2):  # a savepoint
                connection.execute(chance.choice((TABLE, MESSAGE)), (aggregate,))
            if chance.random() < 0.5:
                connection.execute(
                    "INSERT INTO orders VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET total = orders.total + 1",
                    (aggregate,),
                )
        if chance.random() < 0.5:
            connection.execute("DELETE FROM cdc.outbox WHERE xmin = pg_current_xact_id()::xid")
    return commits


@contextmanager
def with_outbox(
    server: PostgresServer, kafka: KafkaBroker, dsn: str, name: str, folder: Path, settings: Mapping[str, Any] = {}
) -> Iterator[Captured]:
    """A database with both modes, and one topic for the events of both."""
    with under_capture(server, kafka, dsn, name, folder, SCHEMA, [ORDERS]) as captured:
        migrate(SourceConfig(dsn=SecretStr(dsn), tables=(ORDERS,)), Names())
        # Below the name, so that the topic goes with the others; events may not go to where capture's own begin.
        route = {"route.topic.replacement": f"{name}-${{routedByValue}}"}
        outbox = {"tables": [{"table": "cdc.outbox", **route}], "messages": route}
        captured.settings = {"outbox": outbox, **settings}
        yield captured


@dataclass(frozen=True, slots=True)
class Told:
    """What the judge saw."""

    events: int
    complaints: tuple[str, ...]


def judge(captured: Captured) -> Told:
    """Every journaled event once, in the order of its aggregate, and nothing else."""
    journal = {
        str(event): (str(aggregate), n)
        for event, aggregate, n in captured.query("SELECT event, aggregate, n FROM journal")
    }
    records, _ = read_topics(captured.bootstrap_servers, [f"{captured.name}-thing"])
    return Told(len(records), tuple(complaints(journal, records)))


def complaints(journal: Mapping[str, tuple[str, int]], records: list[Record]) -> Iterator[str]:
    """`journal`: event id → (aggregate, number). `records`: each partition's in its order."""
    seen: set[str] = set()
    last: dict[str, int] = defaultdict(int)
    for record in records:
        event = dict(record.headers)["id"].decode()
        if event in seen:
            yield f"event {event} came twice"
        seen.add(event)
        aggregate, n = record.key.decode(), int(json.loads(record.value or b"")["n"])
        if journal.get(event) != (aggregate, n):
            yield f"event {event} is not as it was committed, if it was: {journal.get(event)} and {(aggregate, n)}"
        if n <= last[aggregate]:
            yield f"aggregate {aggregate}: {n} came behind {last[aggregate]}"
        last[aggregate] = n
    for event in journal.keys() - seen:
        yield f"event {event} {journal[event]} never came"

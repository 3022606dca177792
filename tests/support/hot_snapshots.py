"""Takes snapshots repeatedly in tiny chunks while `hot_workload` changes every chunk and capture is killed.

Afterwards the judge checks the topics, and the stores are compared with the source."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from cdc.config.config_file import load_config
from cdc.config.settings import KafkaConfig
from cdc.model.topics import Topics
from tests.checker import history, positions, truncations
from tests.checker.judge import COMPLAINTS_MAX, Evidence, gather, judge
from tests.checker.records import changes_of
from tests.support.captured import Captured, CaptureProcess
from tests.support.forked import CDC
from tests.support.hot_workload import TABLES, FrozenCommits, HotClient, fill
from tests.support.stores import stored_rows
from tests.support.topics import keep_every_record
from tests.support.waiting import eventually
from tests.support.workload import Workload
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import TableResult
from watershed.verify.table_rows import TableReader
from watershed.verify.verifier import read_schema_histories

SETTINGS: Final[Mapping[str, Any]] = {
    # Lag is no reason to pause: chunks are to meet as many changes as they can.
    "snapshot": {"chunk_rows_max": 8, "workers": 3, "split_rows_min": 50, "lag_s_max": 30},
    "capture": {"transaction_rows_max": 1_000},
}
CLIENTS: Final = 8
CHUNK_S_MAX: Final = 0.5  # that a chunk may take on average, kills and freezes included
START_S_MAX: Final = 60.0
LINES_MAX: Final = 20  # differing rows that are named


class Merged:
    """Follows the state topic: how many chunks are merged, and how each table's snapshot stands."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.chunks = 0
        self.snapshots: dict[str, Mapping[str, Any]] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "merged",  # required by the client; nothing is committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(Topics(prefix).state, 0, OFFSET_BEGINNING)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self) -> None:
        """Take what is new. A record with ranges is written where a chunk is merged, and where a wish changes it."""
        while messages := self._consumer.consume(5_000, 0.05):
            for message in messages:
                key, value = message.key() or b"", message.value()
                if message.error() is not None or not key.startswith(b"snapshot/") or value is None:
                    continue
                record = json.loads(value)
                self.chunks += bool(record["ranges"]) and record["status"] in ("running", "done")
                self.snapshots[f"{record['table_schema']}.{record['table_name']}"] = record

    def have_ended(self, request: str | None) -> bool:
        """Whether all tables' snapshots, of this request if one is named, have."""
        found = [r for r in self.snapshots.values() if request is None or r["request"] == request]
        return len(found) == len(TABLES) and all(r["status"] != "running" for r in found)


class HotRun:
    """One run on a database that has the tables of tests.support.hot_workload and no row."""

    def __init__(self, captured: Captured, seed: int, *, module: str = CDC, pause_s: float = 0.05) -> None:
        """`pause_s`: of each client after each transaction."""
        self.figures: Counter[str] = Counter()
        self._captured = captured
        self._seed = seed
        self._module = module
        self._pause_s = pause_s
        self._chance = random.Random(seed)
        self._kafka = KafkaConfig(bootstrap_servers=captured.bootstrap_servers)
        self._topics = Topics(captured.name)
        self._process: CaptureProcess | None = None

    def begin(self) -> None:
        """Existing rows, and a capture that streams."""
        with self._captured.connect() as connection:
            fill(connection)
        self._start()
        self._alive.await_said("streaming", START_S_MAX)
        # The judge wants each sweep, we count each chunk.
        keep_every_record(self._captured.bootstrap_servers, [self._topics.state, self._topics.control])

    def churn(self, chunks: int, kills: int, at_kill: Callable[[], None] = lambda: None) -> None:
        """Until so many chunks are merged beside the clients; capture is killed at random moments meanwhile. In the end
        nothing runs but capture, which has caught up, and no snapshot is under way that could repair what is wrong."""
        began = time.monotonic()
        moments = sorted(self._chance.sample(range(1, chunks), kills))
        with ExitStack() as running:
            merged = running.enter_context(Merged(self._captured.bootstrap_servers, self._captured.name))
            clients = running.enter_context(
                Workload(self._captured.dsn, seed=self._seed, clients=CLIENTS, pause_s=self._pause_s, client=HotClient)
            )
            frozen = running.enter_context(FrozenCommits(self._captured.superuser_dsn, self._seed))
            for moment in [*moments, chunks]:
                self._until_merged(merged, moment)
                if moment < chunks:
                    until = clients.committed + self._chance.randrange(60)
                    eventually(lambda until=until: clients.committed > until)  # type: ignore[misc]
                    self._alive.kill()
                    at_kill()
                    self._start()
        self.figures += Counter(chunks=merged.chunks, kills=kills, freezes=frozen.count, transactions=clients.committed)
        self._signal_and_wait("cancel")
        self._captured.await_caught_up()
        self.figures["seconds"] += round(time.monotonic() - began)

    def snapshot_all(self) -> None:
        """One more snapshot of all tables, with nothing beside it."""
        self._signal_and_wait("snapshot")
        self._captured.await_caught_up()

    def _until_merged(self, merged: Merged, chunks: int) -> None:
        """Whenever a snapshot of all tables has ended, the next begins."""
        request: list[str | None] = [None]

        def are_merged() -> bool:
            assert self._alive.exit_code is None, self._alive.said()
            merged.poll()
            if merged.chunks < chunks and merged.have_ended(request[0]):
                request[0] = self._captured.signal("snapshot")
                self.figures["snapshots"] += 1
            return merged.chunks >= chunks

        eventually(
            are_merged,
            START_S_MAX + (chunks - merged.chunks) * CHUNK_S_MAX,
            lambda: f"{chunks} chunks are merged; {merged.chunks} are: {merged.snapshots}\n{self._alive.said()}",
        )

    def _signal_and_wait(self, action: str) -> None:
        """For the answer, which may be that there is nothing to do."""
        self._captured.ask(action, START_S_MAX)

    def _start(self) -> None:
        self._process = self._captured.start(module=self._module)

    @property
    def _alive(self) -> CaptureProcess:
        assert self._process is not None
        return self._process


def evidence(captured: Captured) -> Evidence:
    return gather(captured.bootstrap_servers, captured.name, captured.dsn, captured.tables)


def published(given: Evidence) -> dict[str, Any]:
    """What the judge says, with every wrong row of a chunk counted, and each sweep held against the source."""
    report = judge(given)
    changes = changes_of(given.table_records)
    sweeps = positions.all_sweeps_of(given.control)
    epoch, begins = positions.stream_begin(given.state)
    emptied = truncations.find(changes, given.journal, sweeps, epoch, begins)
    wrong = Counter(
        "resurrected" if "no such row" in complaint else "stale"
        for complaint in history.chunks_are_the_source(changes, given.journal, epoch, emptied)
    )
    swept = history.sweeps_spare_the_source(changes, given.journal, sweeps, epoch, emptied)
    return {
        "epoch": epoch,
        "events": sum(report.ops[op] for op in "cud"),
        "chunk_rows": report.ops["r"],
        "truncates": len(emptied.places),
        "sweeps": len(sweeps),
        "stale": wrong["stale"],
        "resurrected": wrong["resurrected"],
        "complaints": [*report.complaints, *islice(swept, COMPLAINTS_MAX)],
    }


def compare_stores(captured: Captured, stores: Sequence[str]) -> dict[str, list[TableResult]]:
    """Every row and column of each store with the source's, which is at rest."""
    config = load_config(captured.config())
    schema_histories = read_schema_histories(config)
    found: dict[str, list[TableResult]] = {store: [] for store in stores}
    with closing(TableReader(config.source)) as reader:
        for table in config.source.table_ids:
            shape = reader.shape(table)
            with SourceRows(table, shape.columns, shape.key, reader.rows(shape)) as source:
                for store in stores:
                    rows = stored_rows(config, store, schema_histories[table].newest)
                    found[store].append(compare(store, source, rows, added=schema_histories[table].added))
    return found


def wrong_rows(found: Mapping[str, Sequence[TableResult]]) -> dict[str, list[str]]:
    """Examples of what differs, by store; empty when nothing does."""
    return {
        store: [f"{sum(one.drift for one in tables)} rows", *(line for one in tables for line in one.lines(LINES_MAX))]
        for store, tables in found.items()
        if any(one.drift for one in tables)
    }

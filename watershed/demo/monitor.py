"""Observes the pipeline from outside: the progress topic, the source's log, the arrival of rows in the stores,
memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdc.config.config_file import Config
from cdc.kafka.client import client_settings
from cdc.model.control import ProgressRecord
from cdc.model.errors import WatershedError
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from watershed.demo.figures import Freshness, Lag, Rows, SourceHistory, Spread
from watershed.demo.stores import Probe
from watershed.demo.workload import CommittedSample, flushed_lsn

SOURCE_INTERVAL_S = 0.25
PROBE_INTERVAL_S = 0.05  # the resolution of freshness; a shorter one would put load on the stores
PROBE_ROWS_MAX = 50
MEMORY_INTERVAL_S = 5.0
RECENT_S = 30.0  # of the freshness on the screen
PENDING_MAX = 10_000
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The present figures of one store."""

    applied_lsn: int
    lag: Lag
    recent: Spread  # freshness of rows committed in the last RECENT_S
    written: int  # changes written, over all starts of its job
    pending: int  # sampled rows that are not readable yet


@dataclass(frozen=True, slots=True)
class Figures:
    """All present figures."""

    captured_rows: int
    captured_rate: float
    captured_lsn: int
    capture_lag: Lag
    stores: dict[str, StoreFigures]
    memory_mib: dict[str, int]  # resident memory of each process tree


class _Store:
    """The observations of one store."""

    def __init__(self) -> None:
        self.record: SinkRecord | None = None
        self.freshness = Freshness()
        self.pending: deque[CommittedSample] = deque(maxlen=PENDING_MAX)
        self.written_before = 0  # by earlier starts of the job

    def take(self, record: SinkRecord) -> None:
        held = self.record
        if record.role != "serving" or (held and (record.job, record.generation) < (held.job, held.generation)):
            return
        if held and record.written < held.written:
            self.written_before += held.written
        self.record = record

    @property
    def written(self) -> int:
        return self.written_before + (self.record.written if self.record else 0)

    @property
    def applied_lsn(self) -> int:
        return self.record.applied_lsn if self.record else 0


class Monitor:
    """Runs in separate threads between start() and stop(); check() raises the failure of a thread.

    A store with a probe is queried for sampled rows directly. Without a probe, a row counts as readable at the time at
    which the store's sink reports that it had applied the row's LSN.
    """

    def __init__(
        self,
        config: Config,
        dsn: str,
        probes: Mapping[str, Probe | None],
        committed_rows: Callable[[], int],
        pids: Callable[[], Mapping[str, int]],
    ) -> None:
        self._config = config
        self._dsn = dsn
        self._committed_rows = committed_rows
        self._pids = pids
        self._stores = {name: _Store() for name in probes}
        self._by_position = {name for name, probe in probes.items() if probe is None}
        self._rows = Rows()
        self._source = SourceHistory()
        self._captured_lsn = 0
        self._memory_mib: dict[str, int] = {}
        self._memory_mib_max: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [
            self._thread(self._read_progress),
            self._thread(self._watch_source),
            self._thread(self._watch_memory),
            *(self._thread(self._time_rows, name, probe) for name, probe in probes.items() if probe),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_TIMEOUT_S)

    def check(self) -> None:
        """Raises WatershedError if a thread has failed."""
        if self._errors:
            raise WatershedError(f"the demo can't observe the pipeline: {self._errors[0]}") from self._errors[0]

    def sample(self, sample: CommittedSample) -> None:
        """Starts to time the row's arrival in each store."""
        with self._lock:
            for store in self._stores.values():
                store.pending.append(sample)

    def take(self, key: str, value: bytes, now: float) -> None:
        """Takes a record of the progress topic that was read at `now`. Raises WatershedError for a record that can't be
        decoded.
        """
        with self._lock:
            if key == ProgressRecord.KEY:
                progress = ProgressRecord.decode(value, "the progress topic")
                self._rows.observe(now, progress.epoch, progress.seq)
                self._captured_lsn = max(self._captured_lsn, progress.lsn)
            elif key.startswith(SinkRecord.KEY):
                record = SinkRecord.decode(value, "the progress topic")
                store = self._stores.get(record.sink)
                if store is not None:
                    store.take(record)
                    if record.sink in self._by_position:
                        _settle(store, record)

    def figures(self) -> Figures:
        now = time.time()
        with self._lock:
            stores = {
                name: StoreFigures(
                    store.applied_lsn,
                    self._source.lag(store.applied_lsn, now),
                    store.freshness.spread(since=now - RECENT_S),
                    store.written,
                    len(store.pending),
                )
                for name, store in self._stores.items()
            }
            return Figures(
                self._rows.total,
                self._rows.rate(now),
                self._captured_lsn,
                self._source.lag(self._captured_lsn, now),
                stores,
                dict(self._memory_mib),
            )

    def freshness(self, store: str, since: float, until: float) -> Spread:
        """Returns the freshness of rows that were committed in this span of time.time()."""
        with self._lock:
            return self._stores[store].freshness.spread(since, until)

    def memory_mib_max(self) -> dict[str, int]:
        """Returns the largest memory of each process tree."""
        with self._lock:
            return dict(self._memory_mib_max)

    # ---- threads

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - handed to check(), in the thread that can report it
                if not self._stopping.is_set():
                    self._errors.append(error)

        return threading.Thread(target=run, name=work.__name__, daemon=True)

    def _read_progress(self) -> None:
        topic = Topics(self._config.topics.prefix).progress
        consumer = Consumer(
            client_settings(
                self._config.kafka,
                **{
                    "group.id": "watershed-demo-monitor",  # required by the client; nothing is committed
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 50,
                    "topic.metadata.refresh.interval.ms": 1000,  # the topic is created by capture
                },
            )
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while not self._stopping.is_set():
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    self._tolerate(message.error() if message else None)
                    continue
                key, value = message.key(), message.value()
                if key and value:
                    self.take(key.decode(), value, time.time())
        finally:
            consumer.close()

    def _tolerate(self, error: KafkaError | None) -> None:
        if error and error.fatal():
            raise WatershedError(f"Kafka: {error.str()}")

    def _watch_source(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, application_name="demo monitor") as connection:
            while not self._stopping.wait(SOURCE_INTERVAL_S):
                rows = self._committed_rows()  # counted first, so that all of them lie below the LSN
                at = time.time()
                lsn = flushed_lsn(connection)
                with self._lock:
                    self._source.observe(at, lsn, rows)

    def _time_rows(self, name: str, probe: Probe) -> None:
        store = self._stores[name]
        while not self._stopping.wait(PROBE_INTERVAL_S):
            with self._lock:
                asked = [sample for sample, _ in zip(store.pending, range(PROBE_ROWS_MAX), strict=False)]
            if not asked:
                continue
            found = probe(asked)
            readable_at = time.time()
            with self._lock:
                for sample, is_readable in zip(asked, found, strict=True):
                    if is_readable:
                        store.pending.remove(sample)
                        store.freshness.observe(sample.committed_at, readable_at)

    def _watch_memory(self) -> None:
        while True:
            for name, pid in self._pids().items():
                resident = tree_mib(pid)
                with self._lock:
                    self._memory_mib[name] = resident
                    self._memory_mib_max[name] = max(resident, self._memory_mib_max.get(name, 0))
            if self._stopping.wait(MEMORY_INTERVAL_S):
                return


def _settle(store: _Store, record: SinkRecord) -> None:
    """Records the rows below the sink's applied position as readable since the time that the sink reports."""
    readable_at = record.applied_ts_us / 1e6
    for sample in [sample for sample in store.pending if sample.lsn <= record.applied_lsn]:
        store.pending.remove(sample)
        store.freshness.observe(sample.committed_at, readable_at)


def tree_mib(pid: int) -> int:
    """Returns the resident memory of a process and all its descendants; 0 if it has ended. Shared pages are counted for
    each process.
    """
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total // 2**20

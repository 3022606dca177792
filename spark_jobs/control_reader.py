"""Reads the control and progress topics from the driver, with a small consumer of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from confluent_kafka import Message

from cdc.config.settings import KafkaConfig
from cdc.kafka.topic_reader import TopicReader
from cdc.model.control import ProgressRecord, ReloadRecord, SchemaRecord, SweepRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import MappingsRecord, RebuildRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import PENDING_MAX

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControlUpdate:
    """The records that were published since the last read."""

    progress: tuple[ProgressRecord, ...]  # in order; of a long backlog some PENDING_MAX of them, the last included
    sweeps: tuple[SweepRecord, ...]
    schema_histories: tuple[SchemaHistory, ...]  # of each table that is new or has changed

    def followed_by(self, later: "ControlUpdate") -> "ControlUpdate":
        """Returns both, in order."""
        newest = {
            schema_history.newest.table: schema_history
            for schema_history in (*self.schema_histories, *later.schema_histories)
        }
        return ControlUpdate(self.progress + later.progress, self.sweeps + later.sweeps, tuple(newest.values()))


class ControlReader:
    """Follows both topics from their beginning. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, topics: Topics, holds: Callable[[TableId], bool] = lambda _: True) -> None:
        """`holds`: says whether the store holds a table."""
        self.schema_histories: dict[TableId, SchemaHistory] = {}
        self.sinks: dict[str, SinkRecord] = {}  # by record key
        self.rebuilds: dict[str, RebuildRecord] = {}  # by sink
        self.mappings: dict[str, MappingsRecord] = {}  # by sink
        self.reload_us = 0  # of the last ReloadRecord; 0: there is none
        self._topics = topics
        self.excluded: set[TableId] = set()  # published, but not held by the store
        self._holds = holds
        self._left_out: dict[TableId, str] = {}  # table → topic; tables without a key, which no store can hold
        # If records that were read are deleted, continuing would hide it: an error is better than a jump.
        settings = {"auto.offset.reset": "error"}
        what = f"can't read topics of prefix {topics.prefix}"
        self._reader = TopicReader(kafka, what, settings, "watershed-sink-control")
        # progress records that arrived before control was read to the end that belongs to them
        self._ahead: list[Message] = []
        self._damage: WatershedError | None = None  # a record that can't be read, and may be followed by others
        self._clear()

    def _clear(self) -> None:
        self._progress: list[tuple[int, bytes]] = []  # numbered in order of arrival
        self._arrived = 0
        self._stride = 1
        self._sweeps: list[SweepRecord] = []
        self._changed: set[TableId] = set()

    def read(self) -> ControlUpdate:
        """Reads progress to its end, then control to an end that is requested afterwards: all records of control on
        which a progress record relies have been read when this returns. A topic that does not exist yet is empty.
        Raises BrokerError, UnreachableError."""
        if self._damage is not None:
            raise self._damage
        progress_end = self._end(self._topics.progress)
        ahead, self._ahead = self._ahead, []
        for message in ahead:
            self._take(message, progress_end)
        for message in self._reader.read_to(self._topics.progress, progress_end):
            self._take(message, progress_end)
        for message in self._reader.read_to(self._topics.control, self._end(self._topics.control)):
            self._take(message, progress_end)
        where = f"topic {self._topics.progress}"
        update = ControlUpdate(
            tuple(self._without_left_out(ProgressRecord.decode(value, where)) for _, value in self._progress),
            tuple(sweep for sweep in self._sweeps if sweep.table not in self._left_out),
            tuple(self.schema_histories[table] for table in sorted(self._changed)),
        )
        self._clear()
        return update

    def reached(self) -> dict[str, int]:
        """Returns for each of both topics that exists the offset behind what was read."""
        return {topic: offset for (topic, _), offset in self._reader.positions.items()}

    def close(self) -> None:
        self._reader.close()

    def _end(self, topic: str) -> int:
        return self._reader.end(topic)

    def _take(self, message: Message, progress_end: int) -> None:
        topic = message.topic() or ""
        if topic == self._topics.progress and (message.offset() or 0) >= progress_end:
            self._ahead.append(message)
            return
        key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
        if value is not None:
            try:
                self._keep(topic, key, value)
            except WatershedError as error:
                self._damage = error
                raise

    def _keep_progress(self, value: bytes) -> None:
        """Keeps the records whose number the stride divides, and the last one, so that all of a backlog stays
        covered."""
        if self._progress and self._progress[-1][0] % self._stride:
            self._progress.pop()
        self._progress.append((self._arrived, value))
        self._arrived += 1
        if len(self._progress) > 2 * PENDING_MAX:
            self._stride *= 2
            *earlier, last = self._progress
            self._progress = [*(entry for entry in earlier if entry[0] % self._stride == 0), last]

    def _without_left_out(self, progress: ProgressRecord) -> ProgressRecord:
        if not self._left_out:
            return progress
        left_out, tables = set(self._left_out.values()), set(map(str, self._left_out))
        ends = {topic: offsets for topic, offsets in progress.end_offsets.items() if topic not in left_out}
        owed = {table: reason for table, reason in progress.owed.items() if table not in tables}
        return progress.model_copy(update={"end_offsets": ends, "owed": owed})

    def _keep(self, topic: str, key: str, value: bytes) -> None:
        where = f"topic {topic}, key {key}"
        if topic == self._topics.progress:
            if key == ProgressRecord.KEY:
                self._keep_progress(value)
            elif key.startswith(SinkRecord.KEY):
                self.sinks[key] = SinkRecord.decode(value, where)
            elif key.startswith(RebuildRecord.KEY):
                rebuild = RebuildRecord.decode(value, where)
                self.rebuilds[rebuild.sink] = rebuild
            elif key.startswith(MappingsRecord.KEY):
                mappings = MappingsRecord.decode(value, where)
                self.mappings[mappings.sink] = mappings
        elif key.startswith(SchemaRecord.KEY):
            schema = SchemaRecord.decode(value, where).table_schema_of()
            is_held = self._holds(schema.table)
            if not is_held:
                self.excluded.add(schema.table)
            if not schema.key or not is_held:
                if schema.table not in self._left_out:
                    why = "the configuration excludes it" if schema.key else "its records have no key"
                    log.info(f"table left out: {why}", table=str(schema.table))
                self._left_out[schema.table] = schema.topic
                return
            known = self.schema_histories.get(schema.table)
            self.schema_histories[schema.table] = SchemaHistory.of([*(known.versions if known else ()), schema])
            if known is None or schema.version > known.newest.version:
                self._changed.add(schema.table)
        elif key == ReloadRecord.KEY:
            self.reload_us = ReloadRecord.decode(value, where).requested_us
        elif key.startswith(SweepRecord.KEY):
            self._sweeps.append(SweepRecord.decode(value, where))

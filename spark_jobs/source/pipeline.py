"""What a pipeline's topics say about one table, for the driver."""

import time
from dataclasses import dataclass
from typing import Final

from cdc.kafka.state_reader import read_prefixes
from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from cdc.tables.continuity import topic_id_of
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic
from spark_jobs.control_reader import ControlReader
from spark_jobs.source.errors import IncompleteTableError, TopicChangedError, UnknownTableError
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.records import NEXT_AFTER_ANOTHER_TOPIC
from spark_jobs.source.topic_ends import TopicEnds

SWEEP_S_MAX: Final = 30.0
_PAUSE_S: Final = 0.2
_TABLES_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class TableState:
    """A table in its pipeline, at one moment. `end_offsets` were read before everything else."""

    schema_history: SchemaHistory
    progress: ProgressRecord
    sweep: SweepRecord | None  # the last one
    topic_id: str
    start_offsets: tuple[int, ...]  # the first offset of each partition
    end_offsets: tuple[int, ...]  # the last stable offset of each partition

    @property
    def topic(self) -> str:
        return self.schema_history.newest.topic

    @property
    def incarnation(self) -> str:
        """The identity of the topic's log, see ProgressRecord.incarnations."""
        return self.progress.incarnations.get(self.topic) or self.topic_id

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, LSN) up to which everything is in the topic."""
        return self.progress.epoch, self.progress.lsn

    @property
    def owed(self) -> str:
        """Why rows may be missing; "" if none are."""
        return self.progress.owed.get(str(self.schema_history.newest.table), "")


class TableWatch:
    """Follows the topics. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises ConfigError, BrokerError, UnreachableError."""
        self._options = options
        self._tables: set[TableId] = set()
        self._progress: ProgressRecord | None = None
        self._sweep: SweepRecord | None = None
        self._is_known = False
        self._control = ControlReader(options.kafka, Topics(options.prefix), self._holds)
        self._ends = TopicEnds(options.kafka)

    def _holds(self, table: TableId) -> bool:
        self._tables.add(table)
        return table == self._options.table

    def close(self) -> None:
        self._control.close()

    def schema_history(self) -> SchemaHistory:
        """Reads what was published meanwhile. Returns the table's schemas. Raises UnknownTableError, BrokerError."""
        update = self._control.read()
        if update.progress:
            self._progress = update.progress[-1]
        for sweep in update.sweeps:
            if sweep.table == self._options.table and (self._sweep is None or sweep.floor >= self._sweep.floor):
                self._sweep = sweep
        found = self._control.schema_histories.get(self._options.table)
        if found is None:
            raise self._unknown()
        self._ends.set_topics([found.newest.topic])
        self._is_known = True
        return found

    def state(self) -> TableState:
        """Reads the topic's ends, then what was published up to them. Raises UnknownTableError, TopicChangedError,
        BrokerError."""
        if not self._is_known:
            self.schema_history()
        topics = self._ends.ask()
        schema_history = self.schema_history()
        topic = schema_history.newest.topic
        found = topics.get(topic)
        if self._progress is None:
            raise IncompleteTableError(
                f"capture has not published any progress at prefix {self._options.prefix} yet",
                "wait until `cdc status` shows it streaming",
            )
        if found is None:
            raise TopicChangedError(
                f"topic {topic} of table {self._options.table} does not exist",
                "restart capture, which finds the gap; or correct bootstrap.servers and prefix",
            )
        state = _state(schema_history, self._progress, self._sweep, found)
        if topic_id_of(state.incarnation) != state.topic_id:
            raise TopicChangedError(
                f"topic {topic} is another one than capture has published: it was deleted and created again",
                "restart capture, which finds the gap; then start the query with a new checkpoint",
            )
        return state

    def settled_state(self) -> TableState:
        """Returns the facts when everything as of the last sweep is in the topic, so that rows below its floor are
        gone. Raises what `state` raises, IncompleteTableError."""
        deadline = time.monotonic() + SWEEP_S_MAX
        while True:
            state = self.state()
            if state.sweep is None or (state.sweep.epoch, state.sweep.as_of_lsn) <= state.position:
                return state
            if time.monotonic() > deadline:
                raise IncompleteTableError(
                    f"table {self._options.table} was truncated or read again, and capture has published no progress "
                    f"for {SWEEP_S_MAX:.0f} s since",
                    "check with `cdc status` that capture runs, then run the query again",
                )
            time.sleep(_PAUSE_S)

    def _unknown(self) -> WatershedError:
        table, prefix = self._options.table, self._options.prefix
        if table in self._tables:
            return UnknownTableError(
                f"table {table} has no key: its topic is a log of changes without keys, which this data source can't "
                "read",
                "choose key columns (source.key_columns), or read the topic with Spark's source for Kafka",
            )
        if self._tables:
            known = sorted(map(str, self._tables))
            more = f" and {len(known) - _TABLES_NAMED} more" if len(known) > _TABLES_NAMED else ""
            return UnknownTableError(
                f"there is no table {table} at prefix {prefix}",
                f"its tables are {', '.join(known[:_TABLES_NAMED])}{more}; add the table to source.tables, or correct "
                "option table",
            )
        others = ", ".join(read_prefixes(self._options.kafka)) or "none"
        return UnknownTableError(
            f"there is no pipeline at prefix {prefix}",
            f"correct option prefix (these brokers have: {others}) or bootstrap.servers, or start capture with "
            "`cdc run`",
        )


def _state(
    schema_history: SchemaHistory, progress: ProgressRecord, sweep: SweepRecord | None, found: FoundTopic
) -> TableState:
    return TableState(schema_history, progress, sweep, found.topic_id, found.start_offsets, found.end_offsets)


def require_same(then: dict[str, object], state: TableState) -> None:
    """Compares the identity in a checkpoint with the present one. Raises TopicChangedError."""
    checks = {
        "topic": (state.topic, "the checkpoint is of topic {then}, the query reads {now}"),
        "history": (
            state.progress.history,
            "topic {topic} has another history than the checkpoint: versions and "
            "offsets of the former mean nothing in it",
        ),
        "incarnation": (
            state.incarnation,
            "topic {topic} was created again, or has lost records, since the checkpoint was written",
        ),
    }
    for name, (now, message) in checks.items():
        if then.get(name) != now:
            raise TopicChangedError(
                message.format(topic=state.topic, then=then.get(name), now=now), NEXT_AFTER_ANOTHER_TOPIC
            )

"""A model of capture: what it publishes after each event of its life, by the rules of docs/design.

The real capture runs in the other simulations. Here it is only the writer in front of the real sinks' job: it commits
Kafka transactions, owes rows, stops a table whose topic is in trouble, notices gaps, and heals them. Each `step` is one
Kafka transaction or one request. What is pure in the product (cdc/tables/continuity.py) is the product's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import orjson

from cdc.model.control import (
    PROTOCOL,
    PositionRecord,
    ProgressRecord,
    Record,
    SchemaRecord,
    SweepRecord,
    TopicState,
    table_key,
)
from cdc.model.events import TableId, pack_version, unpack_version
from cdc.model.sink_records import SinkRecord
from cdc.tables.continuity import history_of, incarnation_of, intact_topics, published_states, topic_trouble
from tests.simulation.operators.brokers import TOPICS, Brokers
from tests.simulation.operators.source import TABLES, Alter, Row, RowChange, Source, Truncate, schema_of, topic_of
from tests.simulation.operators.state import IDENTITY, Entry, Snapshot, State, entries_of

CHUNK: Final = 3  # rows


@dataclass
class Capture:
    """A process of capture, and what outlives it."""

    source: Source
    brokers: Brokers
    partitions: int = 1
    state: State | None = None  # in the state topic, which Brokers does not hold
    configured: set[TableId] = field(default_factory=lambda: set(TABLES))
    is_running: bool = False
    gap: str = ""  # why nothing is published
    _histories: int = 0
    _position: tuple[State, PositionRecord] | None = None  # of the state for which it was asked last
    _used: set[TableId] = field(default_factory=set)  # configured when the process was started
    taken_up: frozenset[TableId] = frozenset()  # the same, of the last process that could publish

    # ---- processes

    def start(self) -> None:
        self.is_running, self.gap = True, ""
        self._used = set(self.configured)
        if self.state is None:
            self._begin_epoch(1, continues=False)
        else:
            self._look()
        if not self.gap:
            self._join()

    def kill(self) -> None:
        self.is_running, self.gap = False, ""

    @property
    def tables(self) -> set[TableId]:
        """Those that are captured, or stopped, of the configuration that capture has taken up: in a gap it can't."""
        state = self.state
        return set() if state is None else (state.topics.keys() | state.stopped.keys()) & self.taken_up

    @property
    def owes(self) -> bool:
        """Says whether an operator has to do something for a table."""
        state = self.state
        return state is None or bool(state.owed) or bool(state.stopped.keys() & self._used)

    @property
    def is_at_rest(self) -> bool:
        """Nothing is to be published."""
        state = self.state
        return (
            self.is_running
            and not self.gap
            and state is not None
            and not state.snapshots
            and state.lsn == self.source.end
        )

    def position(self) -> PositionRecord | None:
        """What waiters read from the state topic."""
        state = self.state
        if state is None:
            return None
        if self._position is None or self._position[0] is not state:
            self._position = state, _position_of(state)
        return self._position[1]

    def end_of(self, topic: str, partition: int) -> int | None:
        """Returns the end that the position knows; None if it does not know the topic."""
        position = self.position()
        known = None if position is None else position.topics.get(topic)
        if known is None:
            return None
        return known.end_offsets[partition] if partition < len(known.end_offsets) else 0

    # ---- tables

    def reload(self, configured: set[TableId]) -> bool:
        """Takes up other tables while it runs, at the beginning of a session."""
        if not self._streams:
            return False
        self.configured, self._used = configured, set(configured)
        self._join()
        return True

    def replace_table(self, table: TableId, rows: Mapping[int, str]) -> bool:
        """A table that a pattern takes is dropped and created again, while capture runs: it leaves, and joins as a new
        one, whose first rows are older than capture's knowledge of it."""
        if not self._streams or self.state is None or table not in self.state.topics:
            return False
        self._publish(self.state.without(table), [], [])
        self.source.drop(table)
        self.source.commit(*(self.source.row(table, key, text) for key, text in rows.items()))
        self._join()
        return True

    def _join(self) -> None:
        """Removes tables that are configured no longer, and adds those that are new or were started."""
        assert self.state is not None
        self.taken_up = frozenset(self._used)
        state, captured = self.state, self._captured()
        for table in set(state.topics) - self._used:
            state = state.without(table)
        schemas: list[Record] = []
        for table in sorted(self._used - state.topics.keys() - state.stopped.keys()):
            self.brokers.make(topic_of(table), self.partitions)
            now = self._topic(table)
            assert now is not None
            # Its changes count from here on: those before are in the snapshot.
            mark = f"{self.source.end:X}"
            incarnation = incarnation_of(now, [], mark, is_unsure=table in captured)
            update = {"incarnation": incarnation, "end_offsets": (), "since_lsn": self.source.end}
            state = self._captures(state, table, now.model_copy(update=update), Snapshot(), "the table was added")
            schemas.append(self._schema(table))
        if state is not self.state or self._newly_owed(state):
            self._publish(state, [], schemas)

    def _captures(self, state: State, table: TableId, topic: TopicState, snapshot: Snapshot, why: str) -> State:
        versions = {**state.versions, table: self.source.versions[table]}
        oids = {**state.oids, table: self.source.oids[table]}
        captured = replace(state, topics={**state.topics, table: topic}, versions=versions, oids=oids)
        return captured.reading(table, snapshot, why)

    def _topic(self, table: TableId) -> TopicState | None:
        """The table's topic as it is now."""
        topic = self.brokers.topics.get(topic_of(table))
        if topic is None:
            return None
        ends = tuple(log.end for log in topic.logs)
        return TopicState(topic_id=topic.identity, start_offsets=(0,) * len(ends), end_offsets=ends)

    def _captured(self) -> set[TableId]:
        """The tables that were ever captured."""
        latest = self.brokers.latest(TOPICS.control)
        schemas = [SchemaRecord.decode(value, key) for key, value in latest.items() if key.startswith(SchemaRecord.KEY)]
        return {schema.table for schema in schemas}

    def _schema(self, table: TableId) -> SchemaRecord:
        return SchemaRecord.of(schema_of(table, self.source.versions[table]))

    # ---- gaps, and troubles of topics

    def _look(self) -> None:
        """What each session does first: the slot's troubles concern all tables, a topic's only its own."""
        state, slot = self.state, self.source.slot
        assert state is not None
        if slot is None:
            self.gap = "the slot is gone"
        elif slot > state.lsn:
            self.gap = "the slot was moved past the position"
        else:
            for table, then in state.topics.items():
                if self.source.oids[table] != state.oids[table]:  # another table of its name, which joins as a new one
                    state = state.without(table)
                elif table in self._used and (trouble := topic_trouble(then, self._topic(table))):
                    state = state.stopping(table, f"its topic {trouble}")
            if state is not self.state:
                self._publish(state, [], [])

    def heal(self) -> bool:
        """Begins another epoch and reads everything again. Says whether there was a gap."""
        if not self.is_running or not self.gap:
            return False
        assert self.state is not None
        # The state may be an older copy, which does not know what readers have noted since.
        is_behind = self.source.slot is not None and self.source.slot > self.state.lsn
        self.gap = ""
        self._begin_epoch(self._highest_epoch() + 1, continues=not is_behind)
        self._join()
        return True

    def _begin_epoch(self, epoch: int, *, continues: bool) -> None:
        """The first start, or a heal: a new slot, and all tables are read. As cdc/daemon/first_start.py."""
        before, published, captured = self.state, self.progress(), self._captured()
        recorded = {} if before is None else {topic_of(table): known for table, known in before.topics.items()}
        on_error = published_states(published)
        stopped = {} if before is None else before.stopped
        chosen = sorted(self._used - stopped.keys()) or sorted(self._used)
        self._histories += 1
        history = (history_of(self.position(), published) if continues else "") or f"history {self._histories}"
        stopped = {table: why for table, why in stopped.items() if table not in chosen}
        state = State(history, epoch, 0, self.source.end, stopped=stopped)
        for table in sorted(self._used):
            self.brokers.make(topic_of(table), self.partitions)
        for table in chosen:
            now = self._topic(table)
            assert now is not None
            known = [states[topic_of(table)] for states in (recorded, on_error) if topic_of(table) in states]
            is_unsure = table in captured and not (continues and topic_of(table) in recorded)
            incarnation = incarnation_of(now, known, str(epoch), is_unsure=is_unsure)
            topic = now.model_copy(update={"incarnation": incarnation, "end_offsets": ()})
            is_intact = topic_of(table) in intact_topics({topic_of(table): topic}, history, published)
            compares = is_intact and not (before is not None and before.owes_sweep(table))
            sweeps = epoch > 1 and not compares
            snapshot = Snapshot(sweeps=sweeps, floor=pack_version(epoch, 0) if sweeps else 0, compares=compares)
            state = self._captures(state, table, topic, snapshot, "the first snapshot, or that of a heal")
        self.source.slot = state.lsn
        self._publish(state, [], [self._schema(table) for table in chosen])

    def _highest_epoch(self) -> int:
        assert self.state is not None
        epochs = [self.state.epoch]
        epochs += [unpack_version(floor)[0] for floor in self._floors().values()]
        for key, value in self.brokers.latest(TOPICS.progress).items():
            if key.startswith(("sink/", "progress")):
                epochs.append(orjson.loads(value)["epoch"])
        return max(epochs)

    # ---- operators

    def start_snapshot(self, table: TableId, kind: str) -> bool:
        """`kind`: whole, where, range. What is owed is kept: a narrower request is refused meanwhile."""
        state = self.state
        if not self._streams or state is None or table not in state.topics:
            return False
        match kind:
            case "whole":
                snapshot = Snapshot()
            case "where":
                snapshot = Snapshot(sweeps=False, parity=state.seq % 2)
            case _:
                snapshot = Snapshot(0, 2, sweeps=False)
        if not self._may_replace(state, table, snapshot):
            return False
        self._publish(state.reading(table, snapshot), [], [])
        return True

    @staticmethod
    def _may_replace(state: State, table: TableId, snapshot: Snapshot) -> bool:
        held = state.snapshots.get(table)
        return snapshot.is_whole or held is None or not held.is_whole or table not in state.owed

    def alter_snapshot(self, table: TableId, action: str) -> bool:
        """`action`: pause, resume, cancel. Whatever was cancelled and owes rows is still owed."""
        state = self.state
        held = None if state is None else state.snapshots.get(table)
        if not self._streams or state is None or held is None:
            return False
        altered = None if action == "cancel" else replace(held, is_paused=action == "pause")
        self._publish(state.reading(table, altered), [], [])
        return True

    def stop_table(self, table: TableId) -> bool:
        state = self.state
        if not self._streams or state is None or table not in state.topics:
            return False
        self._publish(state.stopping(table, "an operator stopped it"), [], [])
        return True

    def start_table(self, table: TableId) -> bool:
        """All rows of a stopped table are read again."""
        state = self.state
        if not self._streams or state is None or table not in state.stopped.keys() & self._used:
            return False
        self.state = state.starting(table)
        self._join()
        return True

    @property
    def _streams(self) -> bool:
        """Says whether capture can publish; it looks at the slot and the topics first."""
        if self.is_running and not self.gap and self.state is not None:
            self._look()
        return self.is_running and not self.gap

    # ---- steps

    def step(self) -> bool:
        """Publishes what comes next. Says whether there was something."""
        if not self._streams or self.state is None:
            return False
        if any(True for _ in self.source.after(self.state.lsn)):
            self._stream()
            return True
        for table, snapshot in sorted(self.state.snapshots.items()):
            if not snapshot.is_paused:
                self._read_chunk(table, snapshot)
                return True
        return False

    def publish_progress(self) -> None:
        """Asks for the topics' ends, behind the transaction of the position, and publishes them."""
        if not self._streams or self.state is None:
            return
        state = self.state
        ends = {table: self.brokers.ends(topic_of(table)) for table in state.topics}
        known = {table: held.model_copy(update={"end_offsets": ends[table]}) for table, held in state.topics.items()}
        self.state = replace(state, topics=known)
        record = ProgressRecord(
            epoch=state.epoch,
            seq=state.seq,
            lsn=state.lsn,
            commit_ts_us=1,
            published_ts_us=1,
            end_offsets={topic_of(table): end for table, end in ends.items()},
            history=state.history,
            incarnations={topic_of(table): held.identity for table, held in state.topics.items()},
            owed=self._owed(state),
        )
        self.brokers.write([_progress_entry(record)])

    def _owed(self, state: State) -> dict[str, str]:
        stopped = {table: f"it is stopped: {why}" for table, why in state.stopped.items() if table in self._used}
        return {str(table): why for table, why in {**stopped, **state.owed}.items()}

    def _newly_owed(self, state: State) -> list[Entry]:
        """The last progress record, if it lacks tables that the position does not name: a waiter would not miss
        them."""
        last = self.progress()
        owed = {name: why for name, why in self._owed(state).items() if TableId.parse(name) in state.stopped}
        if last is None or last.epoch != state.epoch or owed.keys() <= last.owed.keys():
            return []
        return [_progress_entry(last.model_copy(update={"owed": last.owed | owed}))]

    def _stream(self) -> None:
        """Publishes the transactions that the log has behind the position."""
        state = self.state
        assert state is not None
        entries: list[Entry] = []
        records: list[Record] = []
        for transaction in [*self.source.after(state.lsn)]:
            for message in transaction.messages:
                table = message.table
                known = state.topics.get(table)
                if known is None or transaction.end <= known.since_lsn:
                    continue
                if isinstance(message, Alter):
                    if message.version > state.versions[table]:  # else it was described after that
                        records.append(SchemaRecord.of(schema_of(table, message.version)))
                        state = replace(state, versions={**state.versions, table: message.version})
                        state = state.reading(table, Snapshot(), "its schema changed")
                    continue
                state = replace(state, seq=state.seq + 1)
                if isinstance(message, Truncate):
                    floor = pack_version(state.epoch, state.seq)
                    records.append(self._sweep(table, floor, transaction.lsn, state.epoch, records))
                else:
                    entries += self._entries(state, message, "c" if message.row else "d")
            state = replace(state, lsn=transaction.end)
        self._publish(state, entries, records)

    def _read_chunk(self, table: TableId, snapshot: Snapshot) -> None:
        """Reads some rows at a watermark, and publishes them behind everything before it."""
        state = self.state
        assert state is not None
        floor = pack_version(state.epoch, state.seq + 1) if snapshot.floor is None else snapshot.floor
        watermark = self.source.commit()
        state = replace(state, lsn=watermark.end)
        rows = self.source.rows[table]
        keys = [key for key in sorted(rows) if snapshot.after < key <= snapshot.up_to]
        chunk, rest = keys[:CHUNK], keys[CHUNK:]
        entries: list[Entry] = []
        held = self._rows_in_topic(table) if snapshot.compares else {}
        for key in chunk:
            is_equal = snapshot.compares and held.get(key) == (rows[key], state.versions[table])
            if not is_equal and (snapshot.parity is None or key % 2 == snapshot.parity):
                state = replace(state, seq=state.seq + 1)
                entries += self._entries(state, RowChange(table, key, rows[key]), "r")
        if rest:
            self._publish(state.reading(table, replace(snapshot, after=chunk[-1], floor=floor)), entries, [])
            return
        for key in sorted(held.keys() - rows.keys()):
            state = replace(state, seq=state.seq + 1)
            entries += self._entries(state, RowChange(table, key, None), "d")
        records: list[Record] = []
        state = state.reading(table, None)
        if snapshot.is_whole:
            state = state.complete(table)
        if snapshot.sweeps:
            if floor > pack_version(state.epoch, state.seq):
                state = replace(state, seq=state.seq + 1)
            records.append(self._sweep(table, floor, watermark.lsn, state.epoch, []))
        self._publish(state, entries, records)

    def _entries(self, state: State, change: RowChange, operation: str) -> list[Entry]:
        return entries_of(state, change, operation, len(self.brokers.topics[topic_of(change.table)].logs))

    def _rows_in_topic(self, table: TableId) -> dict[int, tuple[Row, int]]:
        """The rows that the topic has and no sweep has removed, each with its schema version, by key."""
        floor = self._floors().get(SweepRecord.KEY + table_key(table), 0)
        rows: dict[int, tuple[Row, int]] = {}
        for log in self.brokers.topics[topic_of(table)].logs:
            for record in log.records:
                key, value = orjson.loads(record.key() or b"")["id"], orjson.loads(record.value() or b"null")
                source = None if value is None else value["source"]
                if source is None or value["op"] == "d" or pack_version(source["epoch"], source["seq"]) < floor:
                    rows.pop(key, None)
                else:
                    rows[key] = value["after"], source["schema_version"]
        return rows

    def _floors(self) -> dict[str, int]:
        """The floor of each table's last sweep, by record key."""
        latest = self.brokers.latest(TOPICS.control)
        return {k: orjson.loads(value)["floor"] for k, value in latest.items() if k.startswith(SweepRecord.KEY)}

    def _sweep(self, table: TableId, floor: int, lsn: int, epoch: int, earlier: list[Record]) -> SweepRecord:
        previous = self._floors().get(SweepRecord.KEY + table_key(table), 0)
        for record in earlier:  # of the same Kafka transaction
            if isinstance(record, SweepRecord) and record.table == table:
                previous = record.floor
        return SweepRecord.of(table, max(floor, previous), lsn + 1, epoch, previous)

    def _publish(self, state: State, entries: list[Entry], records: list[Record]) -> None:
        """Commits one Kafka transaction, then confirms its position to the source."""
        for topic in (TOPICS.control, TOPICS.progress):
            self.brokers.make(topic)
        entries = [*((TOPICS.control, 0, one.record_key.encode(), one.encode(), None) for one in records), *entries]
        entries += self._newly_owed(state)
        self.brokers.write(entries)
        self.state = state
        self.source.slot = max(self.source.slot or 0, state.lsn)

    def progress(self) -> ProgressRecord | None:
        """The newest one, as waiters read it."""
        value = self.brokers.latest(TOPICS.progress).get(ProgressRecord.KEY)
        return None if value is None else _progress(value)

    def sinks(self) -> list[SinkRecord]:
        """The records of sinks, as waiters read them."""
        latest = self.brokers.latest(TOPICS.progress)
        return [_sink(value) for key, value in latest.items() if key.startswith(SinkRecord.KEY)]


# Waiters look after each step; most records have not changed since.


def _position_of(state: State) -> PositionRecord:
    return PositionRecord(
        phase="streaming",
        epoch=state.epoch,
        seq=state.seq,
        resume_lsn=state.lsn,
        source=IDENTITY,
        publication="p",
        protocol=PROTOCOL,
        history=state.history,
        topics={topic_of(table): known for table, known in state.topics.items()},
    )


def _progress_entry(record: ProgressRecord) -> Entry:
    return TOPICS.progress, 0, record.record_key.encode(), record.encode(), None


@lru_cache(64)
def _progress(value: bytes) -> ProgressRecord:
    return ProgressRecord.decode(value, "progress")


@lru_cache(64)
def _sink(value: bytes) -> SinkRecord:
    return SinkRecord.decode(value, "sink")

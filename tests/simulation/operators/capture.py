"""A model of capture: what it publishes after each event of its life, by the rules of docs/design.

The real capture runs in the other simulations. Here it is only the writer in front of the real sinks' job: it commits
Kafka transactions, owes rows, notices gaps, and heals them. Each `step` is one Kafka transaction or one request.
"""

from dataclasses import dataclass, field, replace
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
from tests.simulation.operators.brokers import TOPICS, Brokers
from tests.simulation.operators.source import TABLES, Alter, RowChange, Source, Truncate, schema_of, topic_of
from tests.simulation.operators.state import IDENTITY, Entry, Known, Snapshot, State, entries_of

CHUNK: Final = 3  # rows
ALL: Final = 1 << 30  # above every key


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
    histories: int = 0
    _owed: list[tuple[int, frozenset[TableId]]] = field(default_factory=list)  # of each progress record, with its LSN
    _used: set[TableId] = field(default_factory=set)  # configured when the process was started

    # ---- processes

    def start(self) -> None:
        self.is_running, self.gap = True, ""
        self._used = set(self.configured)
        if self.state is None:
            self._begin_history()
            return
        self._look_for_gap()
        if not self.gap:
            self._join_and_leave()

    def kill(self) -> None:
        self.is_running, self.gap = False, ""

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
        return PositionRecord(
            phase="streaming",
            epoch=state.epoch,
            seq=state.seq,
            resume_lsn=state.lsn,
            source=IDENTITY,
            publication="p",
            protocol=PROTOCOL,
            history=state.history,
            topics={
                topic_of(table): TopicState(
                    topic_id=known.identity,
                    incarnation=known.incarnation,
                    end_offsets=known.ends,
                    since_lsn=known.since,
                )
                for table, known in state.topics.items()
            },
        )

    def _begin_history(self) -> None:
        self.histories += 1
        self.source.slot = self.source.end
        state = State(f"history {self.histories}", 1, 0, self.source.end)
        self._control([])
        for table in sorted(self._used):
            state = self._taken_up(state, table, Snapshot(-1, ALL, owes=True), "the first snapshot")
        self._publish(state, [], [self._schema(table) for table in sorted(self._used)])

    def _taken_up(self, state: State, table: TableId, snapshot: Snapshot, why: str) -> State:
        """The table is captured from here on, and all of its rows are owed."""
        topic = self.brokers.make(topic_of(table), self.partitions)
        then = state.topics.get(table) or state.left.get(table)
        ends, starts = self.brokers.ends(topic_of(table)), tuple(log.start for log in topic.logs)
        incarnation = topic.identity
        if then is not None and then.identity == topic.identity:
            has_lost = starts != then.starts or any(a < b for a, b in zip(ends, then.ends, strict=False))
            if table in state.left:  # nobody watched the topic meanwhile
                incarnation = f"{topic.identity}#{self.source.end:X}"
            else:
                mark = f"{state.epoch}.{self.source.end:X}"
                incarnation = f"{topic.identity}#{mark}" if has_lost or self._is_behind else then.incarnation
        known = Known(topic.identity, incarnation, ends, starts, self.source.end)
        return replace(
            state,
            topics=state.topics | {table: known},
            left={other: held for other, held in state.left.items() if other != table},
            versions=state.versions | {table: self.source.versions[table]},
            snapshots=state.snapshots | {table: snapshot},
            owed=state.owed | {table: why},
        )

    def _join_and_leave(self) -> None:
        state = self.state
        assert state is not None
        schemas: list[Record] = []
        for table in sorted(set(state.topics) - self._used):
            state = replace(
                state,
                topics={other: known for other, known in state.topics.items() if other != table},
                left=state.left | {table: state.topics[table]},
                snapshots={other: held for other, held in state.snapshots.items() if other != table},
                owed={other: why for other, why in state.owed.items() if other != table},
                stopped=state.stopped - {table},
            )
        for table in sorted(self._used - set(state.topics)):
            floor = pack_version(state.epoch, state.seq + 1)
            joined = Snapshot(-1, ALL, sweeps=True, floor=floor, owes=True)
            state = self._taken_up(state, table, joined, "the table was added")
            # Its changes count from here on: those before are in the snapshot.
            schemas.append(self._schema(table))
        if state is not self.state:
            self._stream(state, schemas)

    def _schema(self, table: TableId) -> SchemaRecord:
        return SchemaRecord.of(schema_of(table, self.source.versions[table]))

    # ---- gaps

    def _look_for_gap(self) -> None:
        state, slot = self.state, self.source.slot
        assert state is not None
        if slot is None:
            self.gap = "the slot is gone"
        elif slot > state.lsn:
            self.gap = "the slot was moved past the position"
        for table, then in state.topics.items():
            topic = self.brokers.topics.get(topic_of(table))
            if topic is None or topic.identity != then.identity:
                self.gap = f"topic of {table} was deleted"
            elif len(topic.logs) != len(then.ends):
                self.gap = f"topic of {table} has other partitions"
            elif any(log.end < end for log, end in zip(topic.logs, then.ends, strict=True)):
                self.gap = f"topic of {table} lost its last records"
            elif tuple(log.start for log in topic.logs) != then.starts:
                self.gap = f"records of {table}'s topic were deleted"

    def heal(self) -> bool:
        """Begins another epoch and reads everything again. Says whether there was a gap."""
        if not self.is_running or not self.gap:
            return False
        assert self.state is not None
        # The slot is past the position: the topics may have lost records, whatever their ends are now.
        self._is_behind = (self.source.slot or 0) > self.state.lsn
        state = replace(self.state, epoch=self._highest_epoch() + 1, seq=0, lsn=self.source.end, snapshots={}, owed={})
        self.source.slot = state.lsn
        self.gap = ""
        for table in sorted(self._used):
            floor = pack_version(state.epoch, 0)
            healing = Snapshot(-1, ALL, sweeps=True, floor=floor, owes=True)
            state = self._taken_up(state, table, healing, "the gap is being healed")
            if table in state.stopped:
                snapshots = {other: one for other, one in state.snapshots.items() if other != table}
                state = replace(state, snapshots=snapshots, owed=state.owed | {table: "the table is stopped"})
        for table in set(state.topics) - self._used:
            topics = {other: known for other, known in state.topics.items() if other != table}
            left = state.left | {table: state.topics[table]}
            state = replace(state, topics=topics, left=left, stopped=state.stopped - {table})
        self._publish(state, [], [self._schema(table) for table in sorted(self._used)])
        self._is_behind = False
        return True

    _is_behind = False

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
        if not self._streams or state is None or table not in state.topics or table in state.stopped:
            return False
        if table in state.snapshots or table in state.owed:
            return False
        match kind:
            case "whole":
                snapshot = Snapshot(-1, ALL, sweeps=True)
            case "where":
                snapshot = Snapshot(-1, ALL, parity=state.seq % 2)
            case _:
                snapshot = Snapshot(0, 2)
        self._publish(replace(state, snapshots=state.snapshots | {table: snapshot}), [], [])
        return True

    def alter_snapshot(self, table: TableId, action: str) -> bool:
        """`action`: pause, resume, cancel. Whatever was cancelled and owes rows is still owed."""
        state = self.state
        held = None if state is None else state.snapshots.get(table)
        if not self._streams or state is None or held is None:
            return False
        if action == "cancel":
            left = {other: one for other, one in state.snapshots.items() if other != table}
            self._publish(replace(state, snapshots=left), [], [])
        else:
            altered = replace(held, is_paused=action == "pause")
            self._publish(replace(state, snapshots=state.snapshots | {table: altered}), [], [])
        return True

    def stop_table(self, table: TableId) -> bool:
        state = self.state
        if not self._streams or state is None or table not in state.topics or table in state.stopped:
            return False
        left = {other: one for other, one in state.snapshots.items() if other != table}
        owed = state.owed | {table: "the table is stopped"}
        self._publish(replace(state, stopped=state.stopped | {table}, snapshots=left, owed=owed), [], [])
        return True

    def start_table(self, table: TableId) -> bool:
        """Starts a stopped table, or reads again what a cancelled snapshot still owes."""
        state = self.state
        if not self._streams or state is None or table in state.snapshots or table not in state.owed:
            return False
        floor = pack_version(state.epoch, state.seq + 1)
        reading = Snapshot(-1, ALL, sweeps=True, floor=floor, owes=True)
        state = replace(state, stopped=state.stopped - {table})
        state = self._taken_up(state, table, reading, "the table was started again")
        self._stream(state, [self._schema(table)])
        return True

    @property
    def _streams(self) -> bool:
        """Says whether capture can publish; it looks at the topics first."""
        if self.is_running and not self.gap and self.state is not None:
            self._look_for_gap()
        return self.is_running and not self.gap

    # ---- steps

    def step(self) -> bool:
        """Publishes what comes next. Says whether there was something."""
        if not self._streams or self.state is None:
            return False
        state = self.state
        if any(True for _ in self.source.after(state.lsn)):
            self._stream(state, [])
            return True
        for table, snapshot in sorted(state.snapshots.items()):
            if not snapshot.is_paused:
                self._read_chunk(table, snapshot)
                return True
        return False

    def publish_progress(self) -> None:
        """Asks for the topics' ends, behind the transaction of the position, and publishes them."""
        state = self.state
        if not self._streams or state is None:
            return
        ends = {table: self.brokers.ends(topic_of(table)) for table in state.topics}
        known = {table: replace(held, ends=ends[table]) for table, held in state.topics.items()}
        self.state = replace(state, topics=known)
        self._owed.append((state.lsn, frozenset(state.owed) | (frozenset(TABLES) - frozenset(state.topics))))
        self._progress(
            ProgressRecord(
                epoch=state.epoch,
                seq=state.seq,
                lsn=state.lsn,
                commit_ts_us=1,
                published_ts_us=1,
                end_offsets={topic_of(table): end for table, end in ends.items()},
                history=state.history,
                incarnations={topic_of(table): held.incarnation for table, held in state.topics.items()},
                starts={topic_of(table): held.starts for table, held in state.topics.items() if any(held.starts)},
                owed={str(table): why for table, why in state.owed.items()},
            )
        )

    def owed_at(self, lsn: int) -> set[TableId]:
        """Returns the tables that were owed, or not captured, at the last published position up to this LSN."""
        published = [at for at, _ in self._owed if at <= lsn]
        return {table for at, owed in self._owed if published and at == max(published) for table in owed}

    def _stream(self, state: State, records: list[Record]) -> None:
        """Publishes the transactions that the log has behind the position."""
        entries: list[Entry] = []
        records = [*records]
        for transaction in [*self.source.after(state.lsn)]:
            for message in transaction.messages:
                table = message.table
                known = state.topics.get(table)
                if known is None or table in state.stopped or transaction.end <= known.since:
                    continue
                if isinstance(message, Alter):
                    if message.version <= state.versions[table]:
                        continue  # it was described after that
                    records.append(SchemaRecord.of(schema_of(table, message.version)))
                    reading = Snapshot(-1, ALL, owes=True, sweeps=table in state.owed)
                    if reading.sweeps:  # what is being read is read from the beginning
                        held = state.snapshots.get(table)
                        floor = pack_version(state.epoch, state.seq + 1) if held is None else held.floor
                        reading = replace(reading, floor=floor, sweeps=held is None or held.sweeps)
                    state = replace(
                        state,
                        versions=state.versions | {table: message.version},
                        snapshots=state.snapshots | {table: reading},
                        owed=state.owed | {table: "its schema changed"},
                    )
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
        if snapshot.sweeps and snapshot.floor is None:
            snapshot = replace(snapshot, floor=pack_version(state.epoch, state.seq + 1))
        watermark = self.source.commit()
        rows = self.source.rows[table]
        keys = [key for key in sorted(rows) if snapshot.after < key <= snapshot.up_to]
        chunk, rest = keys[:CHUNK], keys[CHUNK:]
        entries: list[Entry] = []
        for key in chunk:
            if snapshot.parity is None or key % 2 == snapshot.parity:
                state = replace(state, seq=state.seq + 1)
                entries += self._entries(state, RowChange(table, key, rows[key]), "r")
        records: list[Record] = []
        if rest:
            snapshots = state.snapshots | {table: replace(snapshot, after=chunk[-1])}
            state = replace(state, snapshots=snapshots, lsn=watermark.end)
        else:
            if snapshot.floor is not None and snapshot.sweeps:
                if snapshot.floor > pack_version(state.epoch, state.seq):
                    state = replace(state, seq=state.seq + 1)
                records.append(self._sweep(table, snapshot.floor, watermark.lsn, state.epoch, []))
            owed = {t: w for t, w in state.owed.items() if t != table or not snapshot.owes}
            snapshots = {other: one for other, one in state.snapshots.items() if other != table}
            state = replace(state, snapshots=snapshots, owed=owed, lsn=watermark.end)
        self._publish(state, entries, records)

    def _entries(self, state: State, change: RowChange, operation: str) -> list[Entry]:
        return entries_of(state, change, operation, len(self.brokers.topics[topic_of(change.table)].logs))

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
        self._control(records)
        self.brokers.write(entries)
        self.state = state
        self.source.slot = max(self.source.slot or 0, state.lsn)

    def _control(self, records: list[Record]) -> None:
        for topic in (TOPICS.control, TOPICS.progress):
            self.brokers.make(topic)
        self.brokers.write((TOPICS.control, 0, record.record_key.encode(), record.encode(), None) for record in records)

    def _progress(self, record: ProgressRecord) -> None:
        self.brokers.write([(TOPICS.progress, 0, record.record_key.encode(), record.encode(), None)])

    def progress(self) -> ProgressRecord | None:
        """The newest one, as waiters read it."""
        value = self.brokers.latest(TOPICS.progress).get(ProgressRecord.KEY)
        return None if value is None else ProgressRecord.decode(value, "progress")

    def sinks(self) -> list[SinkRecord]:
        """The records of sinks, as waiters read them."""
        latest = self.brokers.latest(TOPICS.progress)
        return [SinkRecord.decode(value, key) for key, value in latest.items() if key.startswith(SinkRecord.KEY)]

"""Unchanged TOAST values: large values that an update did not change, and PostgreSQL therefore did not log. Pure.

A compacted topic keeps only the last record of a key, so every record has to hold the whole row. A value that the codec
can't take from the old row is filled in here, for the records of one batch, in this order:

1. From the previous record of the same key in the batch; for a moved row, of its old key. For a row that was deleted
   and inserted again, nothing is taken from before the delete.
2. From the table, read by key. The read counts only if its snapshot sees the transaction whose event lacks the value:
   that transaction is in the log before it is visible, and may have changed the value in an earlier statement. A value
   that counts is never older than the event. If it is newer, the event that made it newer follows.
3. Not at all, if nothing could be read in time. The record is published without these columns (or with the placeholder
   of its format) and says so, and the key is noted to be read again in a chunk (cdc/snapshots/completion.py). A row
   that no longer exists needs no note: its delete follows.

A *hole* is an unchanged TOAST value that is still missing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeGuard

from cdc.formats.records import Draft, Headers
from cdc.model.events import TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import FoundRows, RequestedRow, RowsRequest, TopicKey, Unfilled, Unreadable
from cdc.ports.transaction_snapshot import TransactionSnapshot

KEYS_MAX: Final = 500  # per statement


class DraftRecord(NamedTuple):
    """A record whose row has holes. It becomes a TopicRecord when they are filled, or are left unfilled."""

    topic: str
    key: bytes
    draft: Draft
    headers: Headers = None

    def finished(self, value: bytes) -> TopicRecord:
        return TopicRecord(self.topic, self.key, value, self.headers)


class OmittedChange(NamedTuple):
    """A row change that was left out of a batch. Earlier records of its keys no longer show the row, so no later record
    takes values from them. It is never produced."""

    topic: str
    keys: tuple[bytes, ...]  # keys of the change; empty: not known, it may be any key of the topic


BatchRecord = TopicRecord | DraftRecord | OmittedChange


def are_finished(records: Sequence[BatchRecord]) -> TypeGuard[Sequence[TopicRecord]]:
    """Returns whether the batch can be produced as it is."""
    return {DraftRecord, OmittedChange}.isdisjoint(map(type, records))


@dataclass(frozen=True, slots=True)
class _Row:
    """The row as a key's last record shows it: the JSON of each column, None if not known. `filled`: the columns that
    were read from the table."""

    schema_version: int
    columns: tuple[str | None, ...]
    filled: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Read:
    snapshot: TransactionSnapshot
    values: Mapping[int, str | None]  # column → JSON; None: the value does not fit the column's type
    is_there: bool
    size: int  # of the values


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The state of a record with holes."""

    row: _Row
    missing: tuple[int, ...]  # columns
    is_blocked: bool  # the missing columns must be read
    needs_chunk: bool


@dataclass(slots=True)
class _Rows:
    """The last row of each key that a later hole may need."""

    by_place: dict[TopicKey, _Row] = field(default_factory=dict)
    left: tuple[TopicKey, _Row] | None = None  # the row of the last delete, which may be the first half of a move

    def omit(self, change: OmittedChange) -> None:
        """Forgets the rows of the omitted change."""
        for key in change.keys:
            self.by_place.pop((change.topic, key), None)
        if not change.keys:
            self.by_place = {place: row for place, row in self.by_place.items() if place[0] != change.topic}
        self.left = None

    def copy(self) -> "_Rows":
        return _Rows(dict(self.by_place), self.left)


class ToastBatch:
    """The records of one read of the stream.

    Request what is `wanted`, `take` the answer and publish what is `ready`, repeatedly, until it `is_done`; call
    `give_up` if it takes too long.
    """

    def __init__(
        self,
        records: Sequence[BatchRecord],
        fits: Callable[[TopicRecord], bool] = lambda _: True,
    ) -> None:
        """`fits`: returns whether the topic takes the record. A record that is too large when it is filled stays
        unfilled."""
        self._records = records
        self._fits = fits
        self._holes = {i: record for i, record in enumerate(records) if isinstance(record, DraftRecord)}
        self._needed_until: dict[TopicKey, int] = {}  # key → index of the last record that may need its row
        # Key → index of the last record that may need what was read of its row
        self._read_until: dict[TopicKey, int] = {}
        for at, hole in self._holes.items():
            self._needed_until[hole.topic, hole.key] = self._read_until[hole.topic, hole.key] = at
            if hole.draft.former_key is not None:
                self._needed_until[hole.topic, hole.draft.former_key] = at
        # Any draft of a topic can parse the topic's records.
        self._drafts = {hole.topic: hole.draft for hole in self._holes.values()}
        self._needed_last = max(self._needed_until.values(), default=-1)
        self._steps = [i for i, record in enumerate(records) if self._matters(i, record)]
        self._step = 0  # index into _steps of the first record that is not ready
        self._published = 0  # number of records that were returned
        self._rows = _Rows()
        self._reads: dict[TopicKey, _Read] = {}
        self._unreadable: set[TableId] = set()
        self._given_up: set[int] = set()  # indexes of records that stay unfilled
        self._parsed: dict[int, tuple[str | None, ...] | None] = {}  # columns of records, parsed
        self.unfilled: list[Unfilled] = []  # returned records that lack columns and must be read again

    @property
    def is_done(self) -> bool:
        return self._published == len(self._records)

    @property
    def held_bytes(self) -> int:
        """Size of the values that were read for records that are not ready."""
        return sum(read.size for read in self._reads.values())

    def wanted(self, keys_max: int = KEYS_MAX) -> list[RowsRequest]:
        """Returns the rows that are needed first, by table."""
        tables: dict[str, tuple[TableSchema, set[int], dict[TopicKey, RequestedRow]]] = {}
        count = 0
        for i, outcome in self._blocked():
            place, draft, xid = _place(self._holes[i]), self._holes[i].draft, self._holes[i].draft.xid
            _, columns, rows = tables.setdefault(place[0], (draft.schema, set(), {}))
            count += place not in rows
            if count > keys_max:
                break
            columns.update(outcome.missing)
            if place in self._reads:  # the new answer replaces it: keep the columns that other holes need
                columns.update(self._reads[place].values)
            rows[place] = RequestedRow(place, draft.key, rows[place].since if place in rows else xid, xid)
        return [
            RowsRequest(schema, tuple(schema.columns[c].name for c in sorted(columns)), tuple(rows.values()))
            for schema, columns, rows in tables.values()
            if rows
        ]

    def take(self, wanted: RowsRequest, answer: FoundRows | Unreadable) -> bool:
        """Takes the answer to `wanted`. Returns whether it settles at least one row."""
        if isinstance(answer, Unreadable):
            self._unreadable.add(wanted.schema.table)
            return True
        names = [column.name for column in wanted.schema.columns]
        for row, texts in zip(wanted.rows, answer.rows, strict=False):
            draft = self._drafts[row.place[0]]
            named = zip(wanted.columns, texts, strict=True) if texts is not None else ()
            values = {names.index(name): draft.encoded(name, text) for name, text in named}
            size = sum(len(value or "") for value in values.values())
            self._reads[row.place] = _Read(answer.snapshot, values, texts is not None, size)
        return any(answer.snapshot.sees(row.since) for row in wanted.rows[: len(answer.rows)])

    def give_up(self, places: Collection[TopicKey]) -> set[int]:
        """Leaves the wanted values of these rows unfilled. Returns the ids of the transactions that were waited for."""
        blocked = [i for i, _ in self._blocked() if _place(self._holes[i]) in places]
        self._given_up.update(blocked)
        return {self._holes[i].draft.xid for i in blocked}

    def ready(self) -> list[TopicRecord]:
        """Returns the next records, up to the first that waits for a value."""
        records: list[TopicRecord] = []
        while self._step < len(self._steps):
            i = self._steps[self._step]
            records += self._finished_until(i)
            outcome = self._outcome(i, self._rows)
            if outcome is not None and outcome.is_blocked:
                return records
            self._follow(i, outcome, self._rows)
            records += self._finished_until(i + 1) if outcome is None else [self._finished(i, outcome)]
            self._published = i + 1
            self._step += 1
            self._forget(i)
        return records + self._finished_until(len(self._records))

    # ---- inside

    def _finished_until(self, end: int) -> list[TopicRecord]:
        """Returns the records before index `end` that were not returned yet; none of them has holes."""
        records = [record for record in self._records[self._published : end] if not isinstance(record, OmittedChange)]
        assert are_finished(records), "each hole is a step of its own"
        self._published = end
        return list(records)

    def _matters(self, i: int, record: BatchRecord) -> bool:
        """Returns whether a later hole may, or must not, take values from this record."""
        if isinstance(record, OmittedChange):
            return i < self._needed_last
        return i <= self._needed_until.get(_place(record), -1)

    def _blocked(self) -> Iterator[tuple[int, _Outcome]]:
        rows = self._rows.copy()
        for i in self._steps[self._step :]:
            outcome = self._outcome(i, rows)
            self._follow(i, outcome, rows)
            if outcome is not None and outcome.is_blocked:
                yield i, outcome

    def _follow(self, i: int, outcome: _Outcome | None, rows: _Rows) -> None:
        """Updates `rows` with a record. `outcome`: the outcome of its holes, if it has any."""
        record = self._records[i]
        if isinstance(record, OmittedChange):
            rows.omit(record)
            return
        place = _place(record)
        if outcome is not None:
            rows.by_place[place] = outcome.row
            rows.left = None
        elif isinstance(record, TopicRecord) and record.value is not None:
            if i not in self._parsed:
                self._parsed[i] = self._drafts[record.topic].encoder.columns_of(record.value)
            parsed = self._parsed[i]
            if parsed is not None:
                rows.by_place[place] = _Row(self._drafts[record.topic].schema.version, parsed)
            else:
                gone = rows.by_place.pop(place, None)
                rows.left = None if gone is None else (place, gone)

    def _outcome(self, i: int, rows: _Rows) -> _Outcome | None:
        """Returns the state of a record with holes; None for a record without."""
        hole = self._holes.get(i)
        if hole is None:
            return None
        place, version = _place(hole), hole.draft.schema.version
        columns, filled = list(hole.draft.columns), set[int]()
        before = self._before(hole, place, rows)
        if before is not None and before.schema_version == version:
            for c, value in enumerate(columns):
                if value is None and before.columns[c] is not None:
                    columns[c] = before.columns[c]
                    filled |= before.filled & {c}
        missing = tuple(c for c, value in enumerate(columns) if value is None)
        is_blocked = needs_chunk = False
        read = self._reads.get(place)
        if missing and read is not None and read.snapshot.sees(hole.draft.xid):
            for c in missing:
                columns[c] = read.values.get(c)
            filled.update(c for c in missing if columns[c] is not None)
            # A row that no longer exists needs nothing more: its delete follows.
            if read.is_there:
                is_blocked = not all(c in read.values for c in missing) and i not in self._given_up
                needs_chunk = any(columns[c] is None for c in missing)
            missing = tuple(c for c in missing if columns[c] is None)
        elif missing:
            needs_chunk = i in self._given_up or hole.draft.schema.table in self._unreadable
            is_blocked = not needs_chunk
        return _Outcome(_Row(version, tuple(columns), frozenset(filled)), missing, is_blocked, needs_chunk)

    @staticmethod
    def _before(hole: DraftRecord, place: TopicKey, rows: _Rows) -> _Row | None:
        """Returns the row as the previous record of it shows it."""
        if hole.draft.former_key is None:
            return rows.by_place.get(place)
        if rows.left is None or rows.left[0] != (place[0], hole.draft.former_key):
            return None
        # A value that was read by the old key may be of another row that has the key since.
        left = rows.left[1]
        columns = tuple(None if c in left.filled else value for c, value in enumerate(left.columns))
        return _Row(left.schema_version, columns)

    def _finished(self, i: int, outcome: _Outcome) -> TopicRecord:
        hole = self._holes[i]
        finished = hole.finished(hole.draft.finished(outcome.row.columns, sorted(outcome.row.filled)))
        is_too_large = not self._fits(finished)
        if is_too_large:
            finished = hole.finished(hole.draft.without_holes())
        if outcome.needs_chunk or is_too_large:
            self.unfilled.append(Unfilled(hole.draft.schema, hole.draft.key, hole.draft.xid))
        return finished

    def _forget(self, i: int) -> None:
        """Drops values that no later record needs."""
        record = self._records[i]
        if isinstance(record, OmittedChange):
            return
        place = _place(record)
        self._parsed.pop(i, None)
        if self._needed_until[place] <= i:
            self._rows.by_place.pop(place, None)
        if self._read_until.get(place, -1) <= i:
            self._reads.pop(place, None)


def _place(record: TopicRecord | DraftRecord) -> TopicKey:
    return record.topic, record.key

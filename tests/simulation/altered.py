"""One table that is altered in every way while rows are written, followed by the real SchemaTracker, and read by the
real SchemaHistory: a small simulation beside the mixture, in which columns have values.

The source has a catalog, whose columns have numbers, and a log, in which ALTER TABLE does not appear. Capture receives
the log late, sees the catalog early, and may crash after each entry. What it publishes is a topic with the last record
of each key. Whenever all is quiet, every reader's row must be the source's.
"""

import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from cdc.model.control import SchemaRecord
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts, TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import Relation, RelationColumn
from cdc.pgoutput.relations import relation_differs
from cdc.ports.catalog_reader import CatalogAnswer, CatalogPoll, CatalogPollFailed, DivergedTable, KnownTable
from cdc.tables.schema_tracking import SchemaTracker, TrackedTables
from sinks.schema_history import SchemaHistory

TABLE: Final = TableId("public", "altered")
OID: Final = 16_385
INTEGER, TEXT = 23, 25
NAMES: Final = ("a", "b", "c")
KEYS: Final = range(1, 13)  # most changes are of the first two: other rows keep their records for long
STEPS: Final = 70  # between two moments of quiet
QUIET_ROUNDS_MAX: Final = 50
TOPICS: Final = Topics("sim")

Row = dict[str, Any]
_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Attribute:
    """A row of pg_attribute."""

    number: int
    name: str
    oid: int
    changed_in: int
    constant: str | None = None  # attmissingval

    @property
    def column(self) -> Column:
        return Column(self.name, self.oid, -1, str(self.oid), self.name != "id", "b", self.oid)

    def as_json(self, text: str | None) -> Any:
        return int(text) if text is not None and self.oid == INTEGER else text


class Written(NamedTuple):
    """A row change, with the columns that the table had."""

    attributes: tuple[Attribute, ...]
    key: int
    row: Row | None


class Chunk(NamedTuple):
    """All rows as they were read, in the place of their watermark."""

    attributes: tuple[Attribute, ...]
    rows: dict[int, Row]


class Record(NamedTuple):
    """A record in the topic."""

    key: int
    schema_version: int
    row: Row | None


class Source:
    """The table, its catalog and the log."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._alters = chance.choice((0.05, 0.1, 0.4))  # how often it is the table that changes
        self.attributes: tuple[Attribute, ...] = (
            Attribute(1, "id", INTEGER, 1),
            Attribute(2, "a", TEXT, 1),
            Attribute(3, "b", INTEGER, 1),
        )
        self._given = 3  # pg_class.relnatts
        self._file = self._transaction = 1
        self._rows: dict[int, dict[int, str | None]] = {}  # key → number → value, where the row has one
        self._count = 0
        self.log: list[Written | Chunk | str] = []  # a text is the nonce of a poll's watermark
        self.events: Counter[str] = Counter()

    # ---- what is seen

    def rows(self) -> dict[int, Row]:
        return {key: self._shown(key) for key in self._rows}

    def _shown(self, key: int) -> Row:
        values = self._rows[key]
        return {a.name: a.as_json(values.get(a.number, a.constant)) for a in self.attributes}

    def facts(self) -> TableFacts:
        columns = (
            ColumnFacts(
                number=a.number,
                name=a.name,
                changed_in=str(a.changed_in),
                has_missing=a.constant is not None,
                form=str(a.oid),
            )
            for a in self.attributes
        )
        storage = (StorageFacts(oid=OID, file=self._file),)
        return TableFacts(
            oid=OID, columns=tuple(columns), storage=storage, generated="", others="", attributes=self._given
        )

    def constants(self, names: Collection[str]) -> dict[str, str]:
        return {a.name: a.constant for a in self.attributes if a.name in names and a.constant is not None}

    # ---- what happens

    def live(self) -> None:
        """A transaction: some changes of rows, or of the table, or both."""
        self._transaction += 1
        for _ in range(self._chance.choice((1, 1, 1, 1, 2, 3))):
            if self._chance.random() < self._alters:
                self._alter()
            else:
                self._write()

    def chunk(self) -> None:
        self.log.append(Chunk(self.attributes, self.rows()))

    def _value(self, oid: int) -> str | None:
        self._count += 1
        if self._chance.random() < 0.2:
            return None
        return str(self._count) if oid == INTEGER else f"v{self._count}"

    def _write(self) -> None:
        key = self._chance.choice(KEYS if self._chance.random() < 0.3 else KEYS[:2])
        if key in self._rows and self._chance.random() < 0.2:
            del self._rows[key]
            self.log.append(Written(self.attributes, key, None))
            return
        written = self._shown(key) if key in self._rows else {}
        values = {a.number: None if (was := written.get(a.name)) is None else str(was) for a in self.attributes}
        for attribute in self.attributes[1:]:
            if key not in self._rows or self._chance.random() < 0.3:
                values[attribute.number] = self._value(attribute.oid)
        self._rows[key] = values | {1: str(key)}
        self.log.append(Written(self.attributes, key, self._shown(key)))

    def _alter(self) -> None:
        free = [name for name in NAMES if all(a.name != name for a in self.attributes)]
        others = self.attributes[1:]
        change = self._chance.choice(
            ("null", "constant", "constant", "volatile", "drop", "drop", "rename", "retype", "vacuum")
        )
        if change in ("null", "constant", "volatile") and free:
            self._add(self._chance.choice(free), change)
        elif change == "vacuum":
            self._rewrite()
        elif others and change in ("drop", "rename", "retype"):
            chosen = self._chance.choice(others)
            if change == "drop":
                self._drop(chosen)
                if self._chance.random() < 0.2:
                    self._add(chosen.name, self._chance.choice(("null", "constant")))
            elif change == "rename" and free:
                self._replace(chosen, name=self._chance.choice(free))
            elif change == "retype" and chosen.oid == INTEGER:
                self._rewrite()
                self._replace(next(a for a in self.attributes if a.number == chosen.number), oid=TEXT)
        self.events[change] += 1

    def _add(self, name: str, how: str) -> None:
        self._given += 1
        oid = self._chance.choice((INTEGER, TEXT))
        constant = self._value(oid) if how == "constant" else None
        added = Attribute(self._given, name, oid, self._transaction, constant)
        if how == "volatile":
            self._rewrite()
            for values in self._rows.values():
                values[added.number] = self._value(oid)
        self.attributes += (added,)

    def _drop(self, attribute: Attribute) -> None:
        self.attributes = tuple(a for a in self.attributes if a is not attribute)

    def _replace(self, attribute: Attribute, **changes: Any) -> None:
        changed = replace(attribute, changed_in=self._transaction, **changes)
        self.attributes = tuple(changed if a is attribute else a for a in self.attributes)

    def _rewrite(self) -> None:
        """All rows get all values, and no column has a constant any more."""
        self._file += 1
        for attribute in self.attributes:
            if attribute.constant is not None:
                for values in self._rows.values():
                    values.setdefault(attribute.number, attribute.constant)
                self._replace(attribute, constant=None)


class Process:
    """A process of capture. Implements CatalogReader, ExistingRows and EarlierRecords for the tracker."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.schema = run.schemas[max(run.schemas)].table_schema_of()
        self._poll: CatalogPoll | None = None
        self._coming: list[CatalogAnswer | CatalogPollFailed] = []
        self._mark = ""
        self.has_chunk = False
        self.tracker = SchemaTracker(
            topics=TOPICS,
            tables=TrackedTables({TABLE: KnownTable(self.schema, run.facts, "")}, {}, "p"),
            describe=lambda _, sent: [
                Column(c.name, c.type_oid, -1, str(c.type_oid), True, "b", c.type_oid) for c in sent
            ],
            catalog=self,
            rows=self,
            earlier=self,
            now_us=lambda: 0,
            new_nonce=lambda: f"poll {run.chance.getrandbits(64):016x}",
        )

    # ---- CatalogReader

    def ask(self, poll: CatalogPoll) -> None:
        self._poll = poll

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        came, self._coming = self._coming, []
        return came

    def answer(self) -> None:
        """The catalog answers; or its watermark, which follows the answer, comes into the log."""
        source = self._run.source
        if self._mark:
            source.log.append(self._mark)
            self._mark = ""
        elif self._poll is not None:
            poll, self._poll = self._poll, None
            known, now = poll.tables[TABLE], source.facts()
            seen = {} if known.facts == now else {TABLE: self._seen(known, now)}
            self._coming.append(CatalogAnswer(poll.nonce, "p", seen, frozenset()))
            self._mark = poll.nonce if seen else ""

    def _seen(self, known: KnownTable, now: TableFacts) -> DivergedTable:
        schema, columns = known.schema, tuple(a.column for a in self._run.source.attributes)
        if columns != schema.columns:
            schema = replace(schema, version=schema.version + 1, columns=columns, filled=())
        had = {column.number for column in known.facts.columns} if known.facts is not None else set()
        added = [column.name for column in now.columns if column.number not in had]
        return DivergedTable(schema, now, None, "", frozenset(), self._run.source.constants(added))

    # ---- ExistingRows

    def alter(self, schema: TableSchema) -> None:  # noqa: ARG002
        self.has_chunk = False

    def reread(self, table: TableId, why: str) -> list[TopicRecord]:  # noqa: ARG002
        self._run.events["read again"] += 1
        self._run.is_due, self.has_chunk = True, False
        return []

    # ---- EarlierRecords

    def constants(self, oid: int, names: Collection[str]) -> Mapping[str, str]:  # noqa: ARG002
        return self._run.source.constants(names)

    def encoded(self, schema: TableSchema, constants: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        oids = {column.name: column.type_oid for column in schema.columns}
        return tuple(
            (name, text if oids[name] == INTEGER and text.isdigit() else json.dumps(text))
            for name, text in constants.items()
            if name in oids
        )

    def why_published_again(
        self,
        schema: TableSchema,  # noqa: ARG002
        dropped: Collection[str],
        added: Collection[str],  # noqa: ARG002
    ) -> str | None:
        if self._run.has_documents:
            return "documents stay as they were written"
        self._run.events["not read again: dropped" if dropped else "not read again: added"] += 1
        return None

    # ---- the stream

    def receive(self) -> None:
        """Takes the next entry of the log, if there is one, in one Kafka transaction."""
        run = self._run
        if run.position == len(run.source.log):
            return
        entry = run.source.log[run.position]
        run.position += 1
        if isinstance(entry, str):
            self.tracker.watermark(entry.encode())
            records, adopted = self.tracker.end()
            run.commit(records)
            self.schema = adopted[0] if adopted else self.schema
        elif isinstance(entry, Written):
            relation = _relation(entry.attributes)
            if relation_differs(self.schema, relation) is not None:
                self.schema, records = self.tracker.follow(self.schema, relation)
                run.commit(records)
            run.publish(entry.key, self.schema.version, entry.row)
        elif run.is_due and self.has_chunk:
            if relation_differs(self.schema, _relation(entry.attributes)) is None:
                for key, row in entry.rows.items():
                    run.publish(key, self.schema.version, row)
                run.is_due = False
            self.has_chunk = False

    def read_chunk(self) -> None:
        if self._run.is_due and not self.has_chunk:
            self.has_chunk = True
            self._run.source.chunk()


class TypedStore:
    """Rows with columns, which preparing the table changes as the SQL sink does."""

    def __init__(self) -> None:
        self._version: int | None = None  # of the schema for which this generation has prepared the table
        self._held: dict[str, int] = {}  # column → type
        self._next = 0
        self._rows: dict[int, tuple[int, Row | None]] = {}  # key → version of its record, row

    @property
    def rows(self) -> dict[int, Row]:
        return {key: row for key, (_, row) in self._rows.items() if row is not None}

    def begin_generation(self) -> None:
        """The topic is read again. Rows stay, and win against the records that they came from."""
        self._version, self._next = None, 0

    def read(self, run: "Run", count: int) -> None:
        history = run.history()
        if self._version != history.newest.version:
            self._prepare(history)
        for number, record in enumerate(run.records[self._next : self._next + count], self._next):
            if record.key not in self._rows or self._rows[record.key][0] < number:
                row = record.row and history.in_newest(record.schema_version, record.row, frozenset())[0]
                self._rows[record.key] = number, row
        self._next = min(len(run.records), self._next + count)

    def _prepare(self, history: SchemaHistory) -> None:
        wanted = {column.name: column.type_oid for column in history.newest.columns}
        if self._version is None:
            carried, filled = frozenset(wanted), _NOTHING
            if history.ever_filled & (wanted.keys() - self._held.keys()):
                self._rows = {}
        else:
            carried, filled = history.carried(self._version), history.filled(self._version)
        stay = {name for name, oid in wanted.items() if name in carried and self._held.get(name) == oid}
        self._version, self._held = history.newest.version, wanted
        for key, (number, row) in self._rows.items():
            made = row and {name: row[name] if name in stay else filled.get(name) for name in wanted}
            self._rows[key] = number, made


class DocumentStore:
    """Rows that stay as they were written."""

    def __init__(self) -> None:
        self._next = 0
        self.rows: dict[int, Row] = {}

    def read(self, run: "Run", count: int) -> None:
        for record in run.records[self._next : self._next + count]:
            _apply(self.rows, record, run.history())
        self._next = min(len(run.records), self._next + count)


@dataclass
class Run:
    """All that one seed decides."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.source = Source(self.chance)
        self.has_documents = self.chance.random() < 0.25
        columns = tuple(a.column for a in self.source.attributes)
        first = TableSchema(TABLE, 1, OID, columns, ("id",), TOPICS.table(TABLE))
        self.schemas = {1: SchemaRecord.of(first)}  # as committed, like all of these
        self.facts: TableFacts | None = self.source.facts()
        self.is_due = False
        self.position = 0
        self.records: list[Record] = []
        self._process = Process(self)
        self._stores: tuple[TypedStore | DocumentStore, ...] = (TypedStore(),)
        if self.has_documents:
            self._stores += (DocumentStore(),)

    # ---- what is committed

    def commit(self, records: Sequence[TopicRecord]) -> None:
        for record in records:
            if record.key.startswith(b"schema/"):
                made = SchemaRecord.decode(record.value or b"", "control")
                self.schemas[made.version] = made
            else:
                self.facts = TableRecord.decode(record.value or b"", "state").facts

    def publish(self, key: int, schema_version: int, row: Row | None) -> None:
        self.records.append(Record(key, schema_version, row))

    def history(self) -> SchemaHistory:
        return SchemaHistory.of(record.table_schema_of() for record in self.schemas.values())

    # ---- the run

    def judge(self, quiet_moments: int = 8) -> None:
        """Raises AssertionError at a moment of quiet at which a reader has other rows than the source."""
        for _ in range(quiet_moments):
            for _ in range(STEPS):
                self._step()
            self._calm()
            self._compare()

    def _step(self) -> None:
        match self.chance.choices(
            ("live", "receive", "watch", "answer", "chunk", "crash", "read"), (6, 12, 8, 8, 2, 1, 2)
        )[0]:
            case "live":
                self.source.live()
            case "receive":
                self._process.receive()
            case "watch":
                self._process.tracker.watch()
            case "answer":
                self._process.answer()
            case "chunk":
                self._process.read_chunk()
            case "crash":
                self._process = Process(self)
            case _:
                for store in self._stores:
                    store.read(self, self.chance.choice((0, 1, 5, 50)))
                    if isinstance(store, TypedStore) and self.chance.random() < 0.1:
                        store.begin_generation()

    def _calm(self) -> None:
        """Nothing happens in the source any more, and capture comes to its end."""
        for _ in range(QUIET_ROUNDS_MAX):
            for _ in range(2):
                self._process.tracker.watch()
                self._process.answer()
            self._process.read_chunk()
            while self.position < len(self.source.log):
                self._process.receive()
            if self.facts == self.source.facts() and not self.is_due:
                return
        raise AssertionError("capture does not come to an end")

    def _compare(self) -> None:
        expected, history = self.source.rows(), self.history()
        names = [a.name for a in self.source.attributes]
        assert [column.name for column in history.newest.columns] == names, "the newest schema has other columns"
        topic: dict[int, Row] = {}
        for record in self.records:
            _apply(topic, record, history)
        assert topic == expected, f"who reads the topic has {topic}, the source {expected}"
        for store in self._stores:
            store.read(self, len(self.records))
            rows = store.rows
            if isinstance(store, DocumentStore):  # a column that was added as null may be absent
                rows = {key: dict.fromkeys(names) | row for key, row in rows.items()}
            assert rows == expected, f"{type(store).__name__} has {rows}, the source {expected}"
        self.events.update(self.source.events)
        self.source.events.clear()


def _apply(rows: dict[int, Row], record: Record, history: SchemaHistory) -> None:
    if record.row is None:
        rows.pop(record.key, None)
    else:
        rows[record.key] = history.in_newest(record.schema_version, record.row, frozenset())[0]


def _relation(attributes: Sequence[Attribute]) -> Relation:
    columns = tuple(RelationColumn(a.name == "id", a.name, a.oid, -1) for a in attributes)
    return Relation(OID, TABLE.schema, TABLE.name, "d", columns)

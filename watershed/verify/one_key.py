"""One row in the source, in its topic and in every store, and whether each store holds what it should.

The source is read first, the topic last: it has whatever a store has. A store that differs then may just not have the
newest change yet, so it is decided as in a comparison of whole tables (settling.py): only a difference that no write in
progress explains is one.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cdc.config.config_file import Config
from cdc.formats.masks import masks_of
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.state_reader import read_captured
from cdc.kafka.topic_reader import open_reader
from cdc.model.errors import NotInTimeError
from cdc.model.events import TableSchema
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord
from sinks.contents import StoredEntry
from sinks.errors import SinkError
from sinks.records import encode_json
from sinks.registry import open_contents
from sinks.schema_history import SchemaHistory
from watershed.client.dead_letters import read_dead_letters
from watershed.status.table_records import PublishedRecord, payload, read_table_record
from watershed.verify.expected import plain_key, published_texts
from watershed.verify.model import ColumnDifference, RowDifference
from watershed.verify.pipeline_reader import PipelineReader, SinkStalledError
from watershed.verify.settling import Side, settle
from watershed.verify.sides import not_filled, side_of
from watershed.verify.source_rows import SourceRow, VerifiedTable
from watershed.verify.suspects import Suspects
from watershed.verify.verifier import read_schema_histories


class Verdict(StrEnum):
    """What is to be said of one store."""

    EQUAL = "equal"  # also: no row in either
    EXCLUDED = "excluded"  # absent, because the mapping's condition leaves the row out
    EXPIRED = "expired"  # absent from a store whose rows may expire
    BEHIND = "behind"  # the store has not applied what the source has
    DIFFERS = "differs"
    PENDING = "pending"  # differs at this moment, and was not waited for: perhaps a change is under way
    UNDECIDED = "undecided"  # the row changes too often, or its transactions do not end
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class StoreRow:
    """The row in one store."""

    sink: str
    verdict: Verdict
    why: str = ""
    next: str = ""
    generation: int | None = None
    version: int | None = None  # also that of a deleted row
    applied_lsn: int | None = None  # of the sink
    row: Mapping[str, Any] | None = None  # by the store's names of columns
    names: Mapping[str, str] = field(default_factory=dict)  # the source's name of a column → the store's
    differences: Sequence[ColumnDifference] = ()  # of PENDING and DIFFERS

    def as_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "verdict": self.verdict.value,
            "why": self.why,
            "next": self.next,
            "generation": self.generation,
            "version": self.version,
            "applied_lsn": None if self.applied_lsn is None else format_lsn(Lsn(self.applied_lsn)),
            "row": self.row,
            "names": dict(self.names),
            "differences": [{"column": d.column, "expected": d.source, "stored": d.store} for d in self.differences],
        }


@dataclass(frozen=True, slots=True)
class SourceSide:
    """The row in the source, as PostgreSQL prints its values, with capture's masks; None if there is none."""

    row: Mapping[str, str | None] | None


STALLED_S: Final = 5.0  # in which a sink without progress is waited for


@dataclass(frozen=True, slots=True)
class RowEverywhere:
    """One row in the source, in its topic and in every store."""

    schema: TableSchema
    key: Any  # its JSON
    source: SourceSide
    records: Sequence[PublishedRecord]  # of the topic, the newest last
    stores: Sequence[StoreRow]
    not_held: Sequence[str]  # sinks whose options leave the whole table out
    floor: int  # versions below it are gone: a sweep has removed their rows

    def is_swept(self, record: PublishedRecord) -> bool:
        return record.version is not None and record.version < self.floor

    def as_json(self) -> dict[str, Any]:
        return {
            "table": str(self.schema.table),
            "key": self.key,
            "source": self.source.row,
            "topic": {
                "name": self.schema.topic,
                "records": [record.as_json() | {"is_swept": self.is_swept(record)} for record in self.records],
            },
            "stores": [store.as_json() for store in self.stores],
            "not_held": list(self.not_held),
        }


Judgement = tuple[Verdict, str, str, StoredEntry | None, Sequence[ColumnDifference]]
_REPAIR: Final = "cdc repair --sink {sink} --table {table} corrects it"
_REPLAY: Final = "remove the cause, then: cdc dlq replay {sink}"


def read_row(
    config: Config,
    schema: TableSchema,
    key: bytes,
    records: int,
    stalled_s: float = STALLED_S,
    deadline: float | None = None,
    *,
    is_settled: bool = True,
) -> RowEverywhere:
    """Returns the row with this record key. `records`: of the topic, at most so many; 0 reads it not at all, otherwise
    it is read from its beginning. `deadline`: for reading the topic, monotonic seconds. `is_settled`: a store
    that differs is waited for until it is known whether a change under way explains it. `config`: that in force. Raises
    WatershedError, NotInTimeError after the deadline."""
    history = read_schema_histories(config)[schema.table]
    with PipelineReader(config, stalled_s) as pipeline, VerifiedTable(config.source, history.newest) as source:
        reader = KeyReader(config, history, source, pipeline, key)
        row, stores = reader.source(), list(reader.stores(is_settled=is_settled))
        found = reader.topic(records, deadline)  # what a store has is in it by then
    floor = read_captured(config).floors.get(schema.table, 0)
    not_held = [sink for sink, section in config.sinks.items() if not section.holds(schema.table)]
    return RowEverywhere(schema, json.loads(key), row, found, stores, not_held, floor)


class KeyReader:
    """Reads one key of one table. Methods raise WatershedError."""

    def __init__(
        self, config: Config, history: SchemaHistory, source: VerifiedTable, pipeline: PipelineReader, key: bytes
    ) -> None:
        """`key`: record key of the table."""
        self._config = config
        self._history = history
        self._source = source
        self._pipeline = pipeline
        self._key = plain_key(key)
        self._asked = key

    def source(self) -> SourceSide:
        row = self._row()
        if row is None:
            return SourceSide(None)
        schema = self._history.newest
        masks = masks_of(schema, self._config.masking.masks(self._config.source))
        return SourceSide(published_texts(schema, masks, row.texts))

    def topic(self, count: int, deadline: float | None = None) -> list[PublishedRecord]:
        """Returns the last `count` records of the key that the topic still has, the newest last. The topic is read from
        its beginning. Raises NotInTimeError after the deadline (monotonic seconds)."""
        topic, found = self._history.newest.topic, list[PublishedRecord]()
        if not count:
            return found
        plain = record_reader(self._config.kafka).plain

        def check() -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise NotInTimeError(
                    f"topic {topic} could not be read from its beginning in time",
                    "leave its records out (records=0), or use `cdc get`, which has no limit",
                )

        with open_reader(self._config.kafka) as reader:
            for partition in reader.partitions(topic):
                for message in reader.read(topic, partition, while_waiting=check):
                    key = plain(message.key())
                    if key is not None and self._is_asked(key):
                        place = partition, message.offset() or 0
                        record = read_table_record(*place, key, plain(message.value()), message.headers())
                        found = [*found, record][-count:]
        return found

    def stores(self, *, is_settled: bool = True) -> Iterator[StoreRow]:
        """Yields the row of each sink that holds the table."""
        table = self._history.newest.table
        for sink, section in self._config.sinks.items():
            if section.holds(table):
                record = self._pipeline.record(sink)
                try:
                    self._pipeline.require_sink(sink)
                    yield self._stored(sink, record, is_settled=is_settled)
                except (SinkError, SinkStalledError) as error:
                    yield StoreRow(sink, Verdict.NOT_COMPARED, error.message, error.hint)

    def _is_asked(self, key: bytes) -> bool:
        if plain_key(key) == self._key:
            return True
        if b'"payload"' not in key:
            return False
        named = read_table_record(0, 0, key, None, ()).key
        return isinstance(named, dict) and encode_json(payload(named)) == self._key

    def _row(self) -> SourceRow | None:
        return self._source.by_keys([self._asked]).get(self._asked)

    def _stored(self, sink: str, record: SinkRecord | None, *, is_settled: bool) -> StoreRow:
        table = self._history.newest.table
        with closing(open_contents(sink, self._config.sinks[sink], self._config.topics.prefix)) as contents:
            side = side_of(self._config, sink, contents, self._history, self._source)
            if not contents.is_prepared(table):
                why = f"the store has no table of {table} with the columns of its newest schema"
                return StoreRow(sink, Verdict.NOT_COMPARED, why, "wait until the sink has prepared it")
            names = {
                column.name: stored
                for column in self._history.newest.columns
                if (stored := side.expected.stored_name(column.name)) is not None
            }
            judged = self._judged(side, record, is_settled=is_settled)
        verdict, why, hint, entry, differences = judged
        return StoreRow(
            sink,
            verdict,
            why,
            hint,
            None if record is None else record.generation,
            None if entry is None else entry.version,
            None if record is None else record.applied_lsn,
            None if entry is None else entry.row,
            names,
            differences,
        )

    def _judged(self, side: Side, record: SinkRecord | None, *, is_settled: bool) -> Judgement:
        """Returns the verdict, why, the next step, the store's entry that was read last, and what differs in it."""
        table = self._history.newest.table
        if reason := not_filled(side.sink, self._config.sinks[side.sink], record, table):
            hint = "restart the sink, which fills the table again"
            return Verdict.NOT_COMPARED, reason, hint, side.held([self._key])[self._key], ()
        row = self._row()
        entry = side.held([self._key])[self._key]
        difference = side.difference(self._key, row, entry, self._pipeline.ceiling())
        if difference is not None and not is_settled:
            return Verdict.PENDING, "", "", entry, difference.columns
        if difference is not None:
            with Suspects() as suspects:
                suspects.add(self._key)
                try:
                    found = [one for page in settle(side, self._pipeline, suspects) for one in page]
                except SinkStalledError as error:
                    return Verdict.BEHIND, error.message, error.hint, entry, ()
                undecided = len(suspects)
            row = self._row()
            entry = side.held([self._key])[self._key]
            if found:
                rejection = self._rejection(side.sink)
                why, hint = (rejection, _REPLAY) if rejection else (_description(found[0]), _REPAIR)
                return Verdict.DIFFERS, why, hint.format(sink=side.sink, table=table), entry, found[0].columns
            if undecided:
                why = self._pipeline.unsettled(table, 0.0) or "the row changes at each reading"
                return Verdict.UNDECIDED, why, "ask again later", entry, ()
        return *_equal(side, row, entry), entry, ()

    def _rejection(self, sink: str) -> str:
        """Returns why the store has rejected the row; "" if it has not."""
        table = self._history.newest.table
        letters = (letter.row for letter in read_dead_letters(self._config, [sink]))
        reasons = (row.reason for row in letters if row.table == table and encode_json(row.key) == self._key)
        return next((f"the store rejects the row: {reason}" for reason in reasons), "")


def _description(difference: RowDifference) -> str:
    columns = "; ".join(f"{c.column} is {c.store}, expected {c.source}" for c in difference.columns)
    return f"{difference.kind.value}: {columns}" if columns else difference.kind.value


def _equal(side: Side, row: SourceRow | None, entry: StoredEntry | None) -> tuple[Verdict, str, str]:
    if row is None:
        return Verdict.EQUAL, "no row in either", ""
    if entry is not None and entry.row is not None:
        return Verdict.EQUAL, "", ""
    if not side.expected.is_held(row.texts):
        return Verdict.EXCLUDED, "the mapping's condition leaves the row out", ""
    return Verdict.EXPIRED, "rows of this store expire or are read on demand", ""

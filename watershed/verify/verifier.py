"""Comparison of the source's tables with stores, while both are written.

A table is read once, in short transactions, into a temporary file, and each store's rows are compared with it. Rows
that differ are suspect: most of them have changed meanwhile, so each is decided separately (settling.py).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Self

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from cdc.config.table_choice import matches
from cdc.kafka.compacted import read_latest
from cdc.kafka.state_reader import read_state
from cdc.model.control import SchemaRecord
from cdc.model.errors import ConfigError, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.model.rejected_rows import RejectedRow
from cdc.model.suggestions import did_you_mean
from cdc.model.topics import Topics
from cdc.postgres.chunk_table import TableUnlikeError
from sinks.contents import Removal, StoreContents
from sinks.errors import RefusedError, SinkError
from sinks.records import encode_json
from sinks.registry import open_contents
from sinks.schema_history import SchemaHistory
from watershed.client.dead_letters import read_dead_letters
from watershed.verify.comparison import Marks, SourceRows
from watershed.verify.expected import plain_key
from watershed.verify.model import LISTED_MAX, DriftKind, RowDifference, TableResult
from watershed.verify.pipeline_reader import PipelineReader, SinkStalledError
from watershed.verify.settling import Side, settle, with_stale_rows
from watershed.verify.sides import not_filled, side_of
from watershed.verify.source_rows import VerifiedTable
from watershed.verify.suspects import Suspects

PROGRESS_ROWS: Final = 1_000
SCHEMA_S_MAX: Final = 10.0  # until the newest schema of a table is published, and the store has it
CHECK_S: Final = 0.2
REPAIRED_MAX: Final = 100_000  # rows of one table and sink that one command repairs: they are in memory

ProgressCallback = Callable[[str, TableId, str, int, int], None]
"""Reports progress: sink ("" for the source), table, step, rows so far, rows in total (0: not known)."""

RepairCallback = Callable[[VerifiedTable, Sequence[tuple[Side, TableResult, list[RowDifference]]]], None]
"""Repairs the differences of one table, in all its sinks."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection of what is compared."""

    sinks: tuple[str, ...] = ()  # all that are configured by default
    tables: tuple[str, ...] = ("*",)  # patterns over schema.table
    sample: int | None = None  # number of random rows of each side; None: all
    source_share: float = 0.5  # of the time that is spent reading the source
    is_strict: bool = False  # a sink that can't be compared is an error, not a remark


def read_schema_histories(config: Config) -> dict[TableId, SchemaHistory]:
    """Returns the versions of each table's schema, from the control topic."""
    known: dict[TableId, list[TableSchema]] = {}
    control = Topics(config.topics.prefix).control
    for key, value in read_latest(config.kafka, control).items():
        if key.startswith(SchemaRecord.KEY):
            schema = SchemaRecord.decode(value, f"topic {control}, key {key}").table_schema_of()
            known.setdefault(schema.table, []).append(schema)
    return {table: SchemaHistory.of(schemas) for table, schemas in known.items()}


class Verifier:
    """Compares tables with stores; a context manager. Methods raise WatershedError."""

    def __init__(
        self,
        config: Config,
        selection: Selection,
        pipeline: PipelineReader,
        report_progress: ProgressCallback,
        removal: Removal | None = None,
    ) -> None:
        """`removal`: needed to repair a warehouse. Raises ConfigError for a sink or a table that is not configured."""
        self._config = config
        self._selection = selection
        self._pipeline = pipeline
        self._report_progress = report_progress
        self._sections = {name: sink_config(config.sinks, name) for name in selection.sinks or config.sinks}
        if not self._sections:
            raise ConfigError("no sink is configured", "add a store to section sinks")
        stored = config.source.stored_table_ids
        self._tables = [table for table in stored if any(matches(pattern, table) for pattern in selection.tables)]
        self._removal = removal
        self._open = ExitStack()
        self._contents: dict[str, StoreContents] = {}
        self._unavailable: dict[str, str] = {}  # sinks that were not requested by name and can't be compared → reason
        for pattern in selection.tables:
            if not any(matches(pattern, table) for table in self._tables):
                names = ", ".join(map(str, stored)) or "none"
                nearest = did_you_mean(pattern, stored)
                raise ConfigError(f"no table that stores hold matches {pattern}{nearest}", f"tables are: {names}")

    def __enter__(self) -> Self:
        try:
            for name in self._sections:
                try:
                    self._open_sink(name)
                except (SinkError, SinkStalledError) as error:
                    if self._selection.is_strict:
                        raise
                    self._unavailable[name] = error.message
        except BaseException:
            self._open.close()
            raise
        return self

    def _open_sink(self, name: str) -> None:
        self._pipeline.require_sink(name)
        contents = open_contents(name, self._sections[name], self._config.topics.prefix, self._removal)
        self._open.callback(contents.close)
        self._pipeline.wait_until_applied(name)
        self._contents[name] = contents

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, repair: RepairCallback | None = None) -> Iterator[TableResult]:
        """Compares all tables, one after the other. `repair`: repairs each table's differences."""
        schema_histories = read_schema_histories(self._config)
        records = read_state(self._config).tables
        for table in self._tables:
            held = [name for name, section in self._sections.items() if section.holds(table)]
            yield from (
                TableResult(name, table, why_not=self._unavailable[name]) for name in held if name in self._unavailable
            )
            sinks = [name for name in held if name in self._contents]
            record = records.get(table)
            if record is not None and record.status == "stopped":
                reason = f"capture has stopped the table: {record.message or 'cdc table list says why'}"
            elif table not in schema_histories:
                reason = "capture has not published the table yet"
            else:
                reason = self._pipeline.unsettled(table)
            if reason or not sinks:
                yield from (TableResult(sink, table, why_not=reason) for sink in sinks)
                continue
            yield from self._table(schema_histories[table], sinks, repair)

    # ---- one table

    def _table(
        self, schema_history: SchemaHistory, sinks: Sequence[str], repair: RepairCallback | None
    ) -> list[TableResult]:
        table = schema_history.newest.table
        results = [TableResult(sink, table) for sink in sinks]
        found: list[tuple[Side, TableResult, list[RowDifference]]] = []
        try:
            schema_history, opened = self._open_table(schema_history)
            with opened as source, ExitStack() as open_rows:
                rows = None
                if self._selection.sample is None:
                    rows = open_rows.enter_context(self._read(source))
                for result in results:
                    try:
                        side = self._side(result.sink, schema_history, source)
                        differences = self._compare(side, result, rows, keep=repair is not None)
                    except RefusedError as error:  # this store can't be compared, for example a change log
                        result.why_not = error.message
                    except (SinkError, SinkStalledError) as error:
                        source.require_unaltered()  # else the store's table may have a later schema
                        self._skip_sink(result, error)
                    else:
                        found.append((side, result, differences))
                if repair is not None and any(differences or result.orphans for _, result, differences in found):
                    repair(source, found)
        except (SourceError, RefusedError) as error:  # the table was altered, is locked, or has no key to read it by
            for result in results:
                result.why_not = error.message
        return results

    def _open_table(self, schema_history: SchemaHistory) -> tuple[SchemaHistory, VerifiedTable]:
        """Opens the table. One that was altered is opened with the schema that capture has published since."""
        deadline = time.monotonic() + SCHEMA_S_MAX
        while True:
            try:
                return schema_history, VerifiedTable(self._config.source, schema_history.newest)
            except TableUnlikeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(CHECK_S)
            schema_history = read_schema_histories(self._config).get(schema_history.newest.table, schema_history)

    def _read(self, source: VerifiedTable) -> SourceRows:
        schema = source.schema

        def rows() -> Iterator[Sequence[str | None]]:
            count = 0
            for row in source.rows(self._selection.source_share):
                if count % PROGRESS_ROWS == 0:
                    self._report_progress("", schema.table, "reading", count, source.rows_estimated)
                count += 1
                yield row
            self._report_progress("", schema.table, "done", count, count)

        return SourceRows(schema.table, source.types, schema.key, rows())

    def _skip_sink(self, result: TableResult, error: SinkError | SinkStalledError) -> None:
        """A store went away, or its sink stands still: its other tables are not compared either."""
        if self._selection.is_strict:
            raise error
        result.why_not = self._unavailable[result.sink] = error.message
        del self._contents[result.sink]

    def _side(self, sink: str, schema_history: SchemaHistory, source: VerifiedTable) -> Side:
        if reason := self._not_filled(sink, schema_history.newest.table):
            raise RefusedError(reason, "restart the sink, which fills the table again; then compare again")
        side = side_of(self._config, sink, self._contents[sink], schema_history, source)
        self._await_prepared(sink, side.contents, side.expected.schema.table)
        return side

    def _await_prepared(self, sink: str, contents: StoreContents, table: TableId) -> None:
        """Waits until the sink has given the store's table the newest schema."""
        if contents.is_prepared(table):
            return
        self._pipeline.wait_until_applied(sink)
        deadline = time.monotonic() + SCHEMA_S_MAX
        while not contents.is_prepared(table):
            if time.monotonic() > deadline:
                raise RefusedError(
                    f"the store of sink {sink} has no table of {table} with the columns of its newest schema",
                    "wait until the sink has prepared it, then compare again",
                )
            time.sleep(CHECK_S)

    def _not_filled(self, sink: str, table: TableId) -> str:
        """Says why the store does not hold the table as the configuration describes it; "" if it does."""
        return not_filled(sink, self._sections[sink], self._pipeline.record(sink), table)

    def _compare(self, side: Side, result: TableResult, rows: SourceRows | None, *, keep: bool) -> list[RowDifference]:
        """Returns up to REPAIRED_MAX differences if `keep`; the result lists up to LISTED_MAX."""
        generation = self._generation(side.sink)
        dead_letters = self._dead_letters(side.sink, generation, result.table)
        with Suspects() as suspects:
            if rows is None:
                assert self._selection.sample is not None
                self._sample(side, result, suspects, self._selection.sample)
            else:
                self._scan(side, result, suspects, rows)
            kept = self._decide(side, result, suspects, dead_letters, keep=keep)
        if rows is not None:
            # A row whose lookup key leads elsewhere is a difference already; publishing the row again corrects the key.
            named = {column.column for one in result.differences for column in one.columns}
            names = (name for name in side.contents.orphaned_lookups(result.table) if name not in named)
            result.add_orphaned_lookups(islice(dict.fromkeys(names), LISTED_MAX))
        self._report_progress(side.sink, result.table, "done", result.store_rows, result.store_rows)
        if self._generation(side.sink) != generation:
            result.why_not = (
                f"the store of {side.sink} was rebuilt, and its new generation took over while the table was compared"
            )
        return kept

    def _decide(
        self, side: Side, result: TableResult, suspects: Suspects, dead_letters: Mapping[bytes, str], *, keep: bool
    ) -> list[RowDifference]:
        """Adds the suspects that are drift to the result. Returns those that are kept."""
        total = len(suspects)
        first: list[RowDifference] = []  # those that are listed: only they are looked up in the topic
        others: list[RowDifference] = []
        for found in settle(side, self._pipeline, suspects):
            room = LISTED_MAX - len(first)
            first += found[:room]
            for one in found[room:]:
                result.counts[one.kind] += 1
                if keep and len(others) < REPAIRED_MAX - LISTED_MAX:
                    others.append(replace(one, rejected=dead_letters.get(one.key, "")))
            self._report_progress(side.sink, result.table, "deciding", total - len(suspects), total)
        result.undecided += len(suspects)
        listed = [
            replace(one, rejected=dead_letters.get(one.key, ""))
            for one in with_stale_rows(self._config.kafka, side.source.schema, first)
        ]
        for one in listed:
            result.add(one)
        return [*listed, *others] if keep else []

    def _generation(self, sink: str) -> int | None:
        self._pipeline.read_on()
        record = self._pipeline.record(sink)
        return None if record is None else record.generation

    def _scan(self, side: Side, result: TableResult, suspects: Suspects, rows: SourceRows) -> None:
        result.source_rows = rows.count
        seen = Marks(rows.count)
        expected, ceiling = side.expected, self._pipeline.ceiling()
        for key, held in side.contents.rows(expected.schema.table):
            if result.store_rows % PROGRESS_ROWS == 0:
                self._report_progress(side.sink, result.table, "comparing", result.store_rows, rows.count)
                self._pipeline.read_on()
                ceiling = self._pipeline.ceiling()
            result.store_rows += 1
            name = expected.record_key(key)
            if name is None:
                # No row of the source and no record can have this key, so capture can't delete it.
                result.add(
                    RowDifference(encode_json({n: str(v) for n, v in key.items()}), DriftKind.EXTRA, (), held.version)
                )
                continue
            match = rows.find(expected.source_key(key))
            if match is None:
                suspects.add(name)
                continue
            number, texts = match
            is_second = not seen.add(number)
            assert held.row is not None, "rows are live"
            is_right = expected.is_held(texts) and not expected.differences(texts, held.row)
            if is_second or held.is_edited or held.lookups or held.version > ceiling or not is_right:
                suspects.add(name)
        if side.is_partial:
            return
        for number, texts in rows:
            if number not in seen and expected.is_held(texts):
                suspects.add(plain_key(side.source.record_key(texts)))

    def _sample(self, side: Side, result: TableResult, suspects: Suspects, count: int) -> None:
        """Adds rows of both sides to the suspects, so that each of them is decided separately."""
        keys = side.source.sample(count)
        result.source_rows = len(keys)
        for key in keys:
            suspects.add(plain_key(key))
        for stored, _ in islice(side.contents.rows(side.expected.schema.table), count):
            result.store_rows += 1
            if (name := side.expected.record_key(stored)) is not None:
                suspects.add(name)

    def _dead_letters(self, sink: str, generation: int | None, table: TableId) -> Mapping[bytes, str]:
        """Returns record key → reason of the rows that this generation of the store has rejected."""
        dead_letters: Iterator[RejectedRow] = (
            letter.row for letter in read_dead_letters(self._config, [sink]) if letter.generation == generation
        )
        return {encode_json(row.key): row.reason for row in dead_letters if row.table == table}

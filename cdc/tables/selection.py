"""The tables that a session captures: those of the configuration, except those that can't be captured now. Pure.

A table that can't be captured is stopped, alone: its changes are not published, and the reason is recorded. It is added
again like a new table, and all its rows are read again, as soon as its catalog allows that or, where the catalog can't
show that it was repaired, when an operator starts it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.model.control import PositionRecord
from cdc.model.errors import (
    NEXT_AFTER_ALTER,
    NEXT_AFTER_GAP,
    NEXT_AFTER_REPLACED,
    GapError,
    SourceError,
    UnsupportedChangeError,
    WatershedError,
)
from cdc.model.events import TableId, TableSchema
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable, TableDescription
from cdc.tables.schema_changes import key_types_replaced, why_other_keys


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason why a table is not captured."""

    why: WatershedError
    is_held: bool  # stopped until an operator starts it


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The configured tables by what the session does with them."""

    kept: tuple[TableSchema, ...]  # tables that are captured already
    joining: tuple[TableId, ...]  # tables that are to be added
    stopped: Mapping[TableId, Stop] = field(default_factory=dict)


def compare_tables(
    configured: Sequence[TableId], captured: Mapping[TableId, TableSchema], position: PositionRecord, topics: Topics
) -> TableSelection:
    """Compares the configured tables with the position. `captured`: the schema of every table that was ever captured,
    from the control topic. Raises GapError if the control topic lacks one that the position covers."""
    kept, joining = [], []
    for table in configured:
        schema = captured.get(table)
        if schema is not None and schema.topic in position.topics:
            kept.append(schema)
        elif topics.table(table) in position.topics:
            raise GapError(f"topic {topics.control} has no schema of table {table}", NEXT_AFTER_GAP)
        else:
            joining.append(table)
    return TableSelection(tuple(kept), tuple(joining))


def newly_stopped(selection: TableSelection, records: Mapping[TableId, TableRecord], now_us: int) -> list[TableRecord]:
    """Returns the records of stopped tables that differ from those in `records`. `now_us`: µs since 1970."""
    made = []
    for table, stop in selection.stopped.items():
        before = records.get(table)
        known = (before.status, before.message, before.next, before.is_held) if before is not None else None
        if known != ("stopped", stop.why.message, stop.why.hint, stop.is_held):
            made.append(TableRecord.stopped(table, stop.why, now_us, is_held=stop.is_held))
    return made


def assign(
    tables: TableSelection,
    position: PositionRecord,
    captured: Mapping[TableId, TableSchema],
    descriptions: Mapping[TableId, TableDescription],
    records: Mapping[TableId, TableRecord],
    failures: Mapping[TableId, UnsupportedChangeError],
    unread: Collection[TableId] = (),
) -> TableSelection:
    """Decides which of the compared tables are kept, added or stopped. `captured`: the newest schema of every table
    that was ever captured. `failures`: errors that ended sessions of this process. `unread`: tables whose existing rows
    are not published."""

    def why_not_added(before: TableSchema, description: TableDescription) -> SourceError | None:
        return _why_not_added(before, description.found, is_read=before.table not in unread)

    kept: list[TableSchema] = []
    joining: list[TableId] = []
    stopped: dict[TableId, Stop] = {}
    for schema in tables.kept:
        table, description = schema.table, descriptions[schema.table]
        stop = _stop(schema, description, position.topics[schema.topic].publication_entry, records, failures)
        if stop is None:
            kept.append(schema)
        elif (
            not stop.is_held
            and position.partial is None
            and description.barrier is None
            and why_not_added(schema, description) is None
        ):
            joining.append(table)
        else:
            stopped[table] = stop
    for table in tables.joining:
        description, record, before = descriptions[table], records.get(table), captured.get(table)
        if record is not None and record.status == "stopped" and record.is_held:
            stopped[table] = Stop(WatershedError(record.message, record.next), is_held=True)
        elif description.barrier is not None:
            stopped[table] = Stop(description.barrier, is_held=False)
        elif before is not None and (why := why_not_added(before, description)) is not None:
            stopped[table] = Stop(why, is_held=False)
        elif table in failures:
            stopped[table] = Stop(failures[table], failures[table].is_held)
        elif table not in unread and (found := description.unchunkable) is not None:
            stopped[table] = Stop(_no_chunks(table, found.key), is_held=False)
        else:
            joining.append(table)
    return TableSelection(tuple(kept), tuple(joining), stopped)


def _stop(
    schema: TableSchema,
    description: TableDescription,
    entry: str,
    records: Mapping[TableId, TableRecord],
    failures: Mapping[TableId, UnsupportedChangeError],
) -> Stop | None:
    table = schema.table
    if table in failures:
        return Stop(failures[table], failures[table].is_held)
    if (record := records.get(table)) is not None and record.status == "stopped":
        return Stop(WatershedError(record.message, record.next), record.is_held)
    if description.error is not None:
        return Stop(description.error, is_held=False)
    assert description.found is not None, "a missing table has an error"
    if description.found.oid != schema.oid:
        return Stop(SourceError(f"table {table} was dropped and created again", NEXT_AFTER_REPLACED), is_held=False)
    if description.entry != entry:
        why = "it was removed from the publication, or its row filter or column list was changed"
    else:
        found = description.found
        why = why_other_keys(schema, found.key, found.columns) or key_types_replaced(schema, found.columns) or ""
    if not why:
        return None
    return Stop(SourceError(f"table {table} was altered: {why}", NEXT_AFTER_ALTER), is_held=False)


def require_same_keys(before: TableSchema | None, found: SourceTable) -> None:
    """Raises SourceError if records of this table would have other keys than those in its topic: its rows would be
    there twice, and no reader could read both. To be called wherever a table's schema is adopted. `before`: the newest
    schema that was ever captured."""
    if before is not None and (why := why_other_keys(before, found.key, found.columns)):
        raise SourceError(
            f"table {before.table} can't be captured again: {why}",
            "restore its key, or name the columns of the old key in source.key_columns; otherwise remove it from "
            "source.tables and capture it under a topics.prefix and slot of its own",
        )


def _why_not_added(before: TableSchema, found: SourceTable | None, *, is_read: bool) -> SourceError | None:
    """Returns why a table without a barrier can't be added again, or None if it can. Its rows are read in chunks."""
    assert found is not None, "a missing table has a barrier"
    try:
        require_same_keys(before, found)
    except SourceError as error:
        return error
    return None if found.is_chunkable or not is_read else _no_chunks(before.table, before.key)


def _no_chunks(table: TableId, key: Sequence[str]) -> SourceError:
    """Returns the error for rows that can't be read in chunks. Reading the whole table needs the exported snapshot of a
    new slot."""
    healing = "cdc snapshot heal with snapshot.method: consistent, which reads all tables again"
    return SourceError(
        f"table {table} can't be added while capture is streaming: no unique index has exactly its key columns "
        f"({', '.join(key) or 'none'}), in this order, so that its rows can't be read in chunks",
        f"create such an index, or {healing}" if key else healing,
    )

"""The oracles: is a store early, and is it ever in step? They read the store as its readers do."""

from collections.abc import Iterable
from typing import Final

from cdc.model.control import table_key
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord, newest
from tests.simulation.operators.capture import Capture
from tests.simulation.operators.job import NAME
from tests.simulation.operators.source import KEYS, PREFIX, TABLES, Row, Source, topic_of
from tests.simulation.operators.store import Store
from watershed.client.applied import Positions, WaitTarget, obstacle

KEYS_SEEN: Final = range(KEYS)
ALONE: Final = {table: frozenset({str(table)}) for table in TABLES}


class Finding(AssertionError):  # noqa: N818
    """A promise that was broken. `kind`: early, different, stuck, letters."""

    def __init__(self, kind: str, on_error: str) -> None:
        super().__init__(f"{kind}: {on_error}")
        self.kind = kind


def claimed(capture: Capture, lsn: int, held: Iterable[TableId], *, accepts_rejected: bool = True) -> list[TableId]:
    """Returns the tables for which a waiter is answered that the store shows everything up to the LSN: all if it names
    none, or one that it names."""
    position, records = capture.position(), capture.sinks()
    if position is None:
        return []
    positions = Positions(tuple(records), position, capture.progress(), PREFIX)

    def is_answered(names: frozenset[str]) -> bool:
        return _is_answered(WaitTarget(lsn, position.epoch, names, accepts_rejected=accepts_rejected), positions)

    held = list(held)
    return held if is_answered(frozenset()) else [table for table in held if is_answered(ALONE[table])]


def _is_answered(target: WaitTarget, positions: Positions) -> bool:
    try:
        return obstacle(target, NAME, positions) is None
    except WatershedError:
        return False


def require_not_early(
    capture: Capture,
    source: Source,
    store: Store,
    held: Iterable[TableId],
    dead_letters: dict[str, int],
    lost_letters: dict[str, int],
) -> None:
    """Whatever the newest position covers must be in the store, or something later; or it has a dead letter, of which
    the position says so. `lost_letters`: those that an operator has discarded."""
    held = list(held)
    record = newest(capture.sinks(), NAME)
    if record is None:
        return
    lsn = min(record.applied_lsn, source.end)
    for table in claimed(capture, lsn, held):
        if on_error := first_difference(source, store, table, lsn, of_generation(dead_letters, record.generation)):
            raise Finding("early", f"LSN {lsn} counts as shown, but {on_error}; {_on_error(record)}")
    for table in claimed(capture, lsn, held, accepts_rejected=False):
        if on_error := first_difference(source, store, table, lsn, of_generation(lost_letters, record.generation)):
            raise Finding("early", f"LSN {lsn} counts as shown with no row rejected, but {on_error}")


def require_one_form(capture: Capture, store: Store, held: Iterable[TableId]) -> None:
    """Readers see the rows of a table as one mapping makes them, and it is the one that the position names; except for
    a table of which all rows are still to come."""
    record = newest(capture.sinks(), NAME)
    if record is None or record.generation != store.serving_generation:
        return
    for table in claimed(capture, record.applied_lsn, held):
        if topic_of(table) not in record.end_offsets:
            continue
        if (forms := store.forms(table)) - {record.mappings.get(str(table), "")}:
            raise Finding("mixed", f"{table} has rows of {forms}, the position {record.mappings}; {_on_error(record)}")


def first_difference(source: Source, store: Store, table: TableId, lsn: int, dead_letters: dict[str, int]) -> str:
    """Returns what a reader of the table sees that no state from this LSN on has; "" if there is nothing. A row with an
    open dead letter may be an older one."""
    shown = store.shown(table)
    for key in KEYS_SEEN:
        row, possible = _without_nulls(shown.get(key)), source.states_from(table, key, lsn)
        if row not in possible and f"{table_key(table)}/{key}" not in dead_letters:
            return f"row {key} of {table} is {row}, not one of {possible}"
    return ""


def of_generation(dead_letters: dict[str, int], generation: int) -> dict[str, int]:
    """Returns the letters of this generation, by what follows it in their keys."""
    beginning = f"{generation}/"
    return {key.removeprefix(beginning): version for key, version in dead_letters.items() if key.startswith(beginning)}


def require_letters_of_rejected_rows(
    capture: Capture, source: Source, held: Iterable[TableId], dead_letters: dict[str, int], bad: str
) -> None:
    """At rest, the open dead letters of what readers see are those of rows that the store can't hold."""
    tables = {table_key(table): table for table in held}
    record = newest(capture.sinks(), NAME)
    for dead_letter in of_generation(dead_letters, 0 if record is None else record.generation):
        name, key = dead_letter.split("/", 1)
        if name not in tables:
            continue
        row = source.rows[tables[name]].get(int(key))
        if row is None or not row["v"].startswith(bad):
            raise Finding("letters", f"the dead letter {dead_letter} is open, but the row is {row}")


def _without_nulls(row: Row | None) -> Row | None:
    """A column that was added is null until the row is read again; no row of the source has nulls."""
    return None if row is None else {name: value for name, value in row.items() if value is not None}


def _on_error(record: SinkRecord) -> str:
    return f"generation {record.generation}, epoch {record.epoch}, offsets {record.end_offsets}, owed {record.owed}"

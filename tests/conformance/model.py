"""What a store must hold: for each key the change with the highest version. It decides every case."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from cdc.model.events import TableId
from sinks.contract import Change, Json, Outcome, StoredRow
from sinks.records import encode_json
from sinks.reduction import document_id
from tests.conformance.tables import Table
from watershed.verify.equality import store_form

Row = dict[str, Json]


@dataclass
class Model:
    """Versions and rows of all keys ever seen; a deleted key stays, with its version."""

    held: dict[TableId, dict[str, tuple[int, Row | None]]] = field(default_factory=dict)

    def apply(self, change: Change) -> Outcome:
        keys = self.held.setdefault(change.table, {})
        name = document_id(change.key)
        if name in keys and keys[name][0] >= change.version:
            return Outcome.STALE
        row = change.row
        if change.unchanged:
            held = keys[name][1] if name in keys else None
            if held is None:
                return Outcome.STALE
            assert row is not None
            row = row | {column: held[column] for column in change.unchanged}
        keys[name] = change.version, row
        return Outcome.WRITTEN

    def apply_all(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.apply(change)

    def sweep(self, table: TableId, floor: int) -> int:
        keys = self.held.get(table, {})
        swept = [name for name, (version, row) in keys.items() if row is not None and version < floor]
        for name in swept:
            keys[name] = floor, None
        return len(swept)

    def rows(self, table: TableId) -> dict[str, tuple[int, Row]]:
        return {name: (version, row) for name, (version, row) in self.held.get(table, {}).items() if row is not None}


def assert_rows(table: Table, stored: Sequence[StoredRow], model: Model, exact_json: bool) -> None:
    """The store's rows are the model's: keys, versions, every column. Messages name key and column."""
    expected = model.rows(table.id)
    found: dict[str, StoredRow] = {}
    for held in stored:
        name = document_id(held.key)
        assert name not in found, f"{table.id}: {name[:80]!r} comes twice"
        found[name] = held
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    assert not missing, f"{table.id}: {len(missing)} rows are missing, as {missing[0][:80]!r}"
    assert not extra, f"{table.id}: {len(extra)} rows are too many, as {extra[0][:80]!r}"
    for name, (version, row) in expected.items():
        where = f"{table.id} {name[:80]!r}"
        held = found[name]
        assert held.version == version, f"{where}: version {held.version}, expected {version}"
        assert held.row.keys() == row.keys(), f"{where}: columns {sorted(held.row)}, expected {sorted(row)}"
        for column, value in row.items():
            got = held.row[column]
            equal = encode_json(got) == encode_json(value) if exact_json else _same(table.types[column], value, got)
            assert equal, f"{where}: column {column} is {_short(got)}, expected {_short(value)}"


def _same(typname: str, value: Json, got: object) -> bool:
    """The record's JSON value and a store's value, which may be a Python value of the column's type."""
    if value is None or got is None:
        return value is None and got is None
    return _equal(store_form(typname, value), store_form(typname, got))


def _equal(left: Any, right: Any) -> bool:
    match left, right:
        case list(), list():
            return len(left) == len(right) and all(map(_equal, left, right))
        case str(), Decimal():
            return Decimal(left).is_nan() if right.is_nan() else Decimal(left) == right
        case float(), float():
            return left == right or (left != left and right != right)
        case int() | float(), int() | float():
            return left == right
    return type(left) is type(right) and bool(left == right)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

"""The expected content of a store for a source's row: with capture's masks and the sink's mapping applied. Pure.

The source's values are PostgreSQL's texts, and watershed.verify.equality compares them: the code that encodes records
is not used, so that an error in it is found.
"""

from base64 import b64encode
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from cdc.config.masking import Mask
from cdc.config.store_mapping import StoredTables as Section
from cdc.formats.masks import masked
from cdc.model.events import TableSchema
from sinks.contents import Key
from sinks.contract import Json
from sinks.errors import RefusedError
from sinks.records import decode_json, encode_json
from sinks.schema_history import SchemaHistory
from sinks.shaping.expressions.types import ComputationError
from sinks.shaping.functions.columns import FunctionColumns
from sinks.shaping.table import TableShape
from watershed.verify.comparison import shown_text
from watershed.verify.equality import UNLIKE, same, same_value, source_form, store_form
from watershed.verify.model import ColumnDifference, shown

Texts = Sequence[str | None]
# Types, besides arrays, whose values are JSON values other than strings in records.
_NOT_STRINGS = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "bool"})


class ExpectedRows:
    """The expected rows of one table in one store. Raises RefusedError for a mapping that does not fit the table."""

    def __init__(
        self,
        sink: str,
        section: Section,
        schema_history: SchemaHistory,
        types: Mapping[str, str],
        masks: Mapping[str, Mask],
        uncompared: Container[str] = (),
    ) -> None:
        """`types`: of the schema's columns, named as in watershed.verify.equality. `masks`: capture's, by column."""
        self._shape = TableShape(sink, section, schema_history)
        self._names = self._shape.names
        self._source_names = {stored: name for name, stored in self._names.items()}
        self._columns = [column.name for column in schema_history.newest.columns]
        self._types = dict(types)
        self._masks = {name: _on_text(mask) for name, mask in masks.items()}
        self._store_masks = {name: _on_text(mask) for name, mask in self._shape.masks.items()}
        self._constants = self._shape.constants
        self._key = schema_history.newest.key
        self._added = schema_history.added
        self._uncompared = uncompared
        # The columns that the mapping's function read last, and what it returned.
        self._last_returned: tuple[Mapping[str, str | None], dict[str, Json] | None] | None = None
        if name := next((name for name in self._shape.schema.key if name in uncompared), None):
            raise RefusedError(
                f"sink {sink}: rows of {schema_history.newest.table} can't be compared: its shape chooses the type of "
                f"{name}, a column of its key",
                "leave the table out with --table, or remove the column from the shape's types",
            )

    @property
    def schema(self) -> TableSchema:
        """The schema in the store's shape."""
        return self._shape.schema

    def is_held(self, texts: Texts) -> bool:
        """Returns whether the store must hold the row. A row for which the condition or the function has no value
        differs in any case, as `differences` says."""
        try:
            return self._is_wanted(self._published(texts))
        except ComputationError:
            return True

    def _is_wanted(self, published: Mapping[str, str | None]) -> bool:
        """Returns whether the mapping's condition and function want the row in the store. Raises ComputationError."""
        if (condition := self._shape.condition) is not None:
            row = self._row({name: published[name] for name in condition.columns})
            if condition.decide(row, frozenset()) is not True:
                return False
        return self._shape.function is None or self._returned(self._shape.function, published) is not None

    def _returned(self, function: FunctionColumns, published: Mapping[str, str | None]) -> dict[str, Json] | None:
        """Returns what the mapping's function returns for a row. Raises ComputationError."""
        read = {name: published[name] for name in function.reads}
        if self._last_returned is None or self._last_returned[0] != read:
            self._last_returned = read, function.value(self._row(read))
        return self._last_returned[1]

    def differences(self, texts: Texts, stored: Mapping[str, Json]) -> tuple[ColumnDifference, ...]:
        """Returns the columns with unexpected values. `texts`: of a row that the store must hold."""
        found = []
        published = self._published(texts)
        try:
            self._is_wanted(published)
        except ComputationError as error:
            found.append(ColumnDifference("(row)", f"not computed: {error}", "the row as it was before"))
        else:
            found += self._function_differences(published, stored)
        for name, name_there in self._names.items():
            if name_there in self._uncompared:
                continue
            text, pg_type = published[name], self._types[name]
            if (mask := self._store_masks.get(name)) is not None and text is not None:
                text = mask(text)
            if name in self._shape.bounds:
                is_left_out = self._is_left_out(name, text)
                flag = self._shape.flag(name)
                is_added = text is None and name in self._added and flag not in stored
                if stored.get(flag) is not is_left_out and not is_added:
                    there = shown(stored[flag]) if flag in stored else "absent"
                    found.append(ColumnDifference(flag, shown(is_left_out), there))
                text = None if is_left_out else text
            if name_there not in stored:
                if not (text is None and name in self._added):
                    found.append(ColumnDifference(name_there, shown_text(pg_type, text), "absent"))
            elif not same(pg_type, text, self._record_value(name, stored[name_there])):
                found.append(ColumnDifference(name_there, shown_text(pg_type, text), shown(stored[name_there])))
        for name, value in self._constants.items():
            if name not in stored or stored[name] != value or isinstance(stored[name], bool) != isinstance(value, bool):
                there = shown(stored[name]) if name in stored else "absent"
                found.append(ColumnDifference(name, shown(value), there))
        found += self._computed_differences(published, stored)
        known = {*self._source_names, *self._constants, *self._shape.computed}
        known |= self._shape.function.types.keys() if self._shape.function else set()
        known |= {*map(self._shape.flag, self._shape.bounds)}
        found += [ColumnDifference(name, "absent", shown(stored[name])) for name in stored if name not in known]
        return tuple(found)

    def _function_differences(
        self, published: Mapping[str, str | None], stored: Mapping[str, Json]
    ) -> Iterator[ColumnDifference]:
        """Yields the columns of the mapping's function with unexpected values."""
        if self._shape.function is None:
            return
        returned = self._returned(self._shape.function, published) or {}
        for name, pg_type in self._shape.function.types.items():
            if name in self._uncompared:
                continue
            if name not in stored or not same_value(pg_type, returned.get(name), stored[name]):
                there = shown(stored[name]) if name in stored else "absent"
                yield ColumnDifference(name, shown(returned.get(name)), there)

    def _computed_differences(
        self, published: Mapping[str, str | None], stored: Mapping[str, Json]
    ) -> Iterator[ColumnDifference]:
        """Yields the computed columns with unexpected values. They are computed from the source's values."""
        for name, expression in self._shape.computed.items():
            if name in self._uncompared:
                continue
            there = shown(stored[name]) if name in stored else "absent"
            try:
                expected = expression.value(self._row({one: published[one] for one in expression.columns}))
            except ComputationError as error:
                yield ColumnDifference(name, f"nothing, as it can't be computed: {error}", there)
                continue
            if name not in stored or not same_value(expression.type.pg_name, expected, stored[name]):
                yield ColumnDifference(name, shown(expected), there)

    def _row(self, published: Mapping[str, str | None]) -> dict[str, Json]:
        """Returns columns with their values as in records."""
        return {
            name: None if text is None else source_form(self._types[name], text) for name, text in published.items()
        }

    def _is_left_out(self, name: str, text: str | None) -> bool:
        """Returns whether the store has null instead of this value of a column of as_null."""
        if text is None:
            return False
        pg_type = self._types[name]
        return self._shape.bounds[name](source_form(pg_type, text) if pg_type.endswith("[]") else text)

    # ---- keys

    def source_key(self, key: Key) -> dict[str, Json]:
        """Returns a store's key with the source's names."""
        return {self._source_names.get(name, name): value for name, value in key.items()}

    def record_key(self, key: Key) -> bytes | None:
        """Returns the record key for a store's key, whose values are a record's or of the column's type; None for a key
        that no row of the table can have.
        """
        values = self.source_key(key)
        made: dict[str, Json] = {}
        for name in self._key:
            if (value := values.get(name)) is None:
                return None
            form = _json(store_form(self._types[name], value))
            if form is UNLIKE:
                return None
            made[name] = form
        return encode_json(made)

    def store_key(self, record_key: bytes) -> dict[str, Json]:
        """Returns the store's key for a record key."""
        return {self._names[name]: value for name, value in decode_json(record_key).items()}

    def _record_value(self, name: str, value: Json) -> Json:
        """Returns a column's value in the records' form. `value`: the store's value, which may be text."""
        pg_type = self._types[name]
        if name in self._shape.texts and type(value) is str and (pg_type in _NOT_STRINGS or pg_type.endswith("[]")):
            try:
                return decode_json(value.encode())
            except ValueError:  # NaN; an array with explicit lower bounds
                pass
        return value

    def _published(self, texts: Texts) -> dict[str, str | None]:
        """Returns the row's texts as records contain them."""
        return _hidden(dict(zip(self._columns, texts, strict=True)), self._masks)

    def stored_name(self, name: str) -> str | None:
        """Returns the name that the store has for a column of the source; None if it does not hold the column."""
        return self._names.get(name)


def published_texts(schema: TableSchema, masks: Mapping[str, Mask], texts: Texts) -> dict[str, str | None]:
    """Returns a row of the source with capture's masks, as PostgreSQL's texts by column."""
    row = dict(zip((column.name for column in schema.columns), texts, strict=True))
    return _hidden(row, {name: _on_text(mask) for name, mask in masks.items()})


def _hidden(row: dict[str, str | None], masks: Mapping[str, Callable[[str], str]]) -> dict[str, str | None]:
    return {name: masks[name](text) if name in masks and text is not None else text for name, text in row.items()}


def plain_key(record_key: bytes) -> bytes:
    """Returns the same bytes for the same key, independent of the form of its JSON. The key of another program's record
    may be no JSON, and stays as it is."""
    try:
        return encode_json(decode_json(record_key))
    except ValueError:
        return record_key


def _json(form: Any) -> Json:
    match form:
        case Decimal():
            return f"{form:f}"
        case bytes():
            return b64encode(form).decode()
    return form


def _on_text(mask: Mask) -> Callable[[str], str]:
    """Returns the mask as a function of a text. Masks are made for latin-1 views of UTF-8."""
    hide = masked(mask)
    return lambda text: hide(text.encode("utf-8", "surrogateescape").decode("latin-1")).encode("latin-1").decode()

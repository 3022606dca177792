"""The shape that one store's mapping gives to one table's rows. Pure, but for the process of a mapping's function."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdc.config.masking import Mask
from cdc.config.row_condition import BeyondGrammarError
from cdc.config.store_mapping import StoredTables
from cdc.config.table_choice import is_pattern
from cdc.formats.masks import is_text, masked
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableSchema
from sinks.contract import Change, Json, Outcome, Result, SourceOperation
from sinks.errors import RefusedError
from sinks.records import encode_json
from sinks.schema_history import SchemaHistory
from sinks.shaping.bounds import FLAG, Test, beyond
from sinks.shaping.condition import RowCondition
from sinks.shaping.expressions.types import ComputationError, ExpressionError, MissingColumnError
from sinks.shaping.functions.columns import FunctionColumns

if TYPE_CHECKING:  # imported late: only mappings with computed columns need its parser
    from sinks.shaping.expressions.condition import ExpressionCondition
    from sinks.shaping.expressions.expression import Expression

_TEXT_OID: Final = 25
_BOOLEAN_OID: Final = 16
_CONSTANT_TYPES: Final[dict[type, tuple[int, str]]] = {
    bool: (_BOOLEAN_OID, "boolean"),
    int: (20, "bigint"),
    float: (701, "double precision"),
    str: (_TEXT_OID, "text"),
}
_STALE: Final = Result(Outcome.STALE)
_NEXT: Final = "correct the sink's mapping, then restart the sink: it fills the store again if rows get another shape"


class TableShape:
    """The mapping of one table, checked against the newest version of its schema."""

    def __init__(
        self, sink: str, section: StoredTables, schema_history: SchemaHistory, *, checks_excluded: bool = True
    ) -> None:
        """Raises RefusedError, naming the sink, the table and the column, for a mapping that does not fit the schema.

        An entry whose name is a pattern may name columns that only some of its tables have; its condition may not.
        """
        pattern, self._mapping = section.mapped(schema_history.newest.table)
        self._where = f"sink {sink}: mapping of {schema_history.newest.table}"
        self._is_identity = self._mapping.is_identity
        schema = schema_history.newest
        self._check(schema, schema_history, is_strict=not is_pattern(pattern), checks_excluded=checks_excluded)
        self._function = (
            None if self._mapping.function is None else self._function_columns(self._mapping.function, schema)
        )
        self._names = self._stored_names(schema)
        self._pairs = tuple(self._names.items())
        self._computed = {name: self._expression(name, text, schema) for name, text in self._mapping.computed.items()}
        self.schema = self._schema(schema, self._computed_columns(schema_history, schema))
        self.earlier = tuple(
            self._schema(older, self._computed_columns(schema_history, older)) for older in schema_history.earlier
        )
        self._is_renamed = any(name != stored for name, stored in self._names.items())
        self._masks = {
            mask.column: _on_text(masked(mask))
            for mask in self._mapping.mask.masks(schema.table)
            if mask.column in self._names
        }
        self._bounds = {
            column.name: is_beyond
            for column in schema.columns
            if column.name in self._mapping.as_null and column.name in self._names and (is_beyond := beyond(column))
        }
        self._texts = tuple(self._names[name] for name in self._mapping.as_text if name in self._names)
        self._condition = None if self._mapping.where is None else self._row_condition(self._mapping.where, schema)

    @property
    def is_identity(self) -> bool:
        """True if the store holds every row as it is in the source."""
        return self._is_identity

    @property
    def names(self) -> Mapping[str, str]:
        """The names in the store of the columns that the store has, by column."""
        return self._names

    @property
    def masks(self) -> Mapping[str, Mask]:
        """The masks of columns that the store has, by the columns' names in the source."""
        masks = self._mapping.mask.masks(self.schema.table)
        return {mask.column: mask for mask in masks if mask.column in self._names}

    @property
    def texts(self) -> frozenset[str]:
        """The columns that the store keeps as text, by their names in the source."""
        return frozenset(self._mapping.as_text)

    @property
    def bounds(self) -> Mapping[str, Test]:
        """Columns that are null where the value is one that stores can't hold, by their names in the source, with what
        says so of a value."""
        return self._bounds

    def flag(self, name: str) -> str:
        """The store's column that says of a column of `bounds` whether its value was left out."""
        return self._names[name] + FLAG

    @property
    def constants(self) -> Mapping[str, Json]:
        """The values of the columns that the mapping adds."""
        return self._mapping.constants

    @property
    def computed(self) -> Mapping[str, "Expression"]:
        """The expressions of the columns that the mapping computes."""
        return self._computed

    @property
    def function(self) -> FunctionColumns | None:
        """The function of the mapping."""
        return self._function

    @property
    def condition(self) -> "RowCondition | ExpressionCondition | None":
        """The condition that the store's rows meet; None: the store holds all rows."""
        return self._condition

    def change(self, change: Change) -> Change | None:
        """Returns the change in the store's shape; a row that does not meet the condition is deleted at its version.

        Returns None if the change lacks a column without which the condition can't be decided or a column can't be
        computed. The store then keeps its row: capture publishes the whole row soon after, with a greater version.
        Raises ComputationError for a row for which the condition, a computed column or the function has no value.
        """
        if self._is_identity:
            return change
        key = {self._names[name]: value for name, value in change.key.items()} if self._is_renamed else change.key
        if change.row is None:
            is_whole = self._condition is None and self._function is None  # the store holds every row
            gone = change.origin if is_whole else _left_out(change.origin)
            return Change(change.table, key, change.version, None, change.schema_version, origin=gone)
        try:
            row = self._held_row(change.row, change.unchanged)
        except MissingColumnError:
            return None
        if row is None:
            gone = _left_out(change.origin)
            return Change(change.table, key, change.version, None, change.schema_version, origin=gone)
        unchanged = change.unchanged
        if unchanged:
            flags = frozenset(self.flag(name) for name in unchanged if name in self._bounds)
            unchanged = flags | frozenset(self._names[name] for name in unchanged if name in self._names)
        return Change(change.table, key, change.version, row, change.schema_version, unchanged, change.origin)

    def _held_row(self, row: dict[str, Json], unchanged: frozenset[str]) -> dict[str, Json] | None:
        """Returns a row in the store's shape; None for one that the store does not hold. Raises ComputationError,
        MissingColumnError."""
        if self._condition is not None:
            is_held = self._condition.decide(row, unchanged)
            if is_held is None:
                raise MissingColumnError
            if not is_held:
                return None
        if self._function is None:
            return self.row(row)
        added = self._function.value(row)
        return None if added is None else self.row(row) | added

    def row(self, row: dict[str, Json]) -> dict[str, Json]:
        """Returns a row's columns in the store's shape, without those of the function. Raises ComputationError,
        MissingColumnError."""
        try:
            stored = {name_there: row[name] for name, name_there in self._pairs}
        except KeyError:  # the row lacks columns
            stored = {name_there: row[name] for name, name_there in self._pairs if name in row}
        for name, mask in self._masks.items():
            name_there = self._names[name]
            if (value := stored.get(name_there)) is not None:
                stored[name_there] = mask(value)
        for name, is_beyond in self._bounds.items():
            if (name_there := self._names[name]) in stored:
                value = stored[name_there]
                is_left_out = stored[self.flag(name)] = value is not None and is_beyond(value)
                stored[name_there] = None if is_left_out else value
        for name_there in self._texts:
            value = stored.get(name_there)
            if value is not None and type(value) is not str:
                stored[name_there] = encode_json(value).decode()
        if self._mapping.constants:
            stored |= self._mapping.constants
        for name, expression in self._computed.items():
            try:
                stored[name] = expression.value(row)
            except ComputationError as error:
                raise ComputationError(f"computed column {name}: {error}") from None
        return stored

    # ---- names and types

    def _stored_names(self, schema: TableSchema) -> dict[str, str]:
        """Returns the names in the store of the columns that the store has, by column."""
        mapping = self._mapping
        included = None if mapping.include is None else {*mapping.include, *schema.key}
        names = {
            column.name: mapping.rename.get(column.name, column.name)
            for column in schema.columns
            if (included is None or column.name in included) and column.name not in mapping.exclude
        }
        named = [(name, f"the constant {name}") for name in mapping.constants]
        named += [(name, f"the computed column {name}") for name in mapping.computed]
        if self._function is not None:
            named += [(name, f"column {name} of the function") for name in self._function.types]
        named += [(names[name] + FLAG, f"the flag of {name}") for name in mapping.as_null if name in names]
        named += [(stored, f"column {name}") for name, stored in names.items()]
        owners: dict[str, str] = {}
        for stored, owner in named:
            if (other := owners.setdefault(stored, owner)) != owner:
                raise self._refused(f"{other} and {owner} would both be named {stored}")
        return names

    def _expression(self, name: str, text: str, schema: TableSchema) -> "Expression":
        """Returns the expression of a computed column. Raises RefusedError."""
        try:
            from sinks.shaping.expressions.expression import Expression
        except ModuleNotFoundError as error:
            raise self._lacks_package("computed columns need", error) from error
        try:
            expression = Expression(text, schema)
        except ExpressionError as error:
            raise self._refused(f"computed column {name}: {error}") from None
        self._check_masked(f"computed column {name}: it", expression.columns)
        return expression

    def _check_masked(self, what: str, reads: frozenset[str]) -> None:
        if masked_here := sorted(reads & set(self._mapping.mask.columns)):
            raise self._refused(f"{what} would show column {masked_here[0]}, which mask hides")

    def _function_columns(self, name: str, schema: TableSchema) -> FunctionColumns:
        """Returns the columns of the mapping's function. Raises RefusedError."""
        try:
            function = FunctionColumns(name, self._mapping.function_time_limit_s, schema)
        except ConfigError as error:
            raise RefusedError(f"{self._where}: {error.message}", error.hint) from error
        self._check_masked(f"function {name}", function.reads)
        return function

    def _row_condition(self, text: str, schema: TableSchema) -> "RowCondition | ExpressionCondition":
        """Returns the condition. Raises RefusedError."""
        try:
            return RowCondition(text, schema)
        except BeyondGrammarError as error:
            beyond_grammar = error
        except ValueError as error:
            raise self._refused(str(error)) from None
        try:
            from sinks.shaping.expressions.condition import ExpressionCondition
        except ModuleNotFoundError as error:
            raise self._lacks_package(f"{beyond_grammar}; as an SQL expression it needs", error) from error
        try:
            return ExpressionCondition(text, schema)
        except ExpressionError as error:
            raise self._refused(f"where: {error}") from None

    def _lacks_package(self, what: str, error: ModuleNotFoundError) -> RefusedError:
        return RefusedError(
            f"{self._where}: {what} the Python package {error.name}", "pip install 'watershed-cdc[expressions]'"
        )

    def _computed_columns(self, schema_history: SchemaHistory, schema: TableSchema) -> Iterator[Column]:
        """Yields the computed columns of a version of the schema, and the function's. An earlier one lacks those whose
        values from then say nothing now, because a column that they were computed from is another one."""
        carried = schema_history.carried(schema.version)
        for name, expression in self._computed.items():
            if schema is schema_history.newest:
                yield expression.column(name)
            elif expression.columns <= carried:
                with suppress(RefusedError):  # the expression does not fit the former types
                    yield self._expression(name, self._mapping.computed[name], schema).column(name)
        if self._function is not None and (schema is schema_history.newest or self._function.reads <= carried):
            yield from self._function.columns

    def _schema(self, schema: TableSchema, computed: Iterable[Column]) -> TableSchema:
        """Returns a version of the schema, the newest or an earlier one, with the newest one's names. `computed`: the
        columns that the mapping computes."""
        names = self._names
        columns = [self._column(column, names[column.name]) for column in schema.columns if column.name in names]
        known = {column.name for column in schema.columns}
        flags = [names[name] + FLAG for name in self._mapping.as_null if name in names and name in known]
        columns += [Column(flag, _BOOLEAN_OID, -1, "boolean", False, base_type_oid=_BOOLEAN_OID) for flag in flags]
        for name, value in self._mapping.constants.items():
            oid, type_name = _CONSTANT_TYPES[type(value)]
            columns.append(Column(name, oid, -1, type_name, nullable=False, base_type_oid=oid))
        columns += computed
        filled = tuple(
            (names[name], value) for name, value in schema.filled if name in names and not self._mapping.reshapes(name)
        )
        return replace(schema, columns=tuple(columns), key=tuple(names[name] for name in schema.key), filled=filled)

    def _column(self, column: Column, name: str) -> Column:
        is_masked = column.name in self._mapping.mask.columns and is_text(
            column
        )  # a mask may be longer than varchar(n)
        if is_masked or column.name in self._mapping.as_text:
            return Column(name, _TEXT_OID, -1, "text", nullable=column.nullable, base_type_oid=_TEXT_OID)
        return replace(column, name=name)

    # ---- checks

    def _check(
        self, schema: TableSchema, schema_history: SchemaHistory, *, is_strict: bool, checks_excluded: bool
    ) -> None:
        mapping, columns = self._mapping, {column.name: column for column in schema.columns}
        if is_strict:
            named = {"include": mapping.include or (), "rename": mapping.rename, "mask": mapping.mask.columns}
            for option, names in {**named, "as_text": mapping.as_text, "as_null": mapping.as_null}.items():
                self._require(names, columns, option)
            # The name of a column that the table has had before is not a mistake.
            known = {column.name for version in schema_history.versions for column in version.columns}
            if checks_excluded:
                self._require(mapping.exclude, known, "exclude")
        for name in schema.key:
            if name in mapping.exclude:
                raise self._refused(f"exclude names column {name}, which is part of the record key")
            if name in mapping.mask.columns:
                raise self._refused(f"mask names column {name}, which is part of the record key")
            for option, listed in (("as_text", mapping.as_text), ("as_null", mapping.as_null)):
                if name in listed:
                    raise self._refused(f"{option} names column {name}, which is part of the record key")
        for name in mapping.as_null:
            if name in columns and beyond(columns[name]) is None:
                raise self._refused(
                    f"as_null names column {name}, which has type {columns[name].type_name}: it is for dates, "
                    "timestamps, numerics and arrays"
                )
        for name in mapping.mask.columns:
            if name in columns and not is_text(columns[name]):
                raise self._refused(
                    f"mask names column {name}, which has type {columns[name].type_name}: only text can be masked"
                )

    def _require(self, names: Iterable[str], known: Iterable[str], option: str) -> None:
        known = set(known)
        for name in names:
            if name not in known:
                raise self._refused(f"{option} names column {name}, which the table does not have")

    def _refused(self, what: str) -> RefusedError:
        return RefusedError(f"{self._where}: {what}", _NEXT)


class TableShapes:
    """The shapes of one sink's tables."""

    def __init__(self, sink: str, section: StoredTables) -> None:
        self._sink = sink
        self._section = section
        self._shapes: dict[object, TableShape] = {}

    def learn(self, schema_history: SchemaHistory, *, checks_excluded: bool = True) -> TableShape:
        """Sets the table's schema, and returns its shape. `checks_excluded`: all versions of the schema are known.
        Raises RefusedError.
        """
        shape = TableShape(self._sink, self._section, schema_history, checks_excluded=checks_excluded)
        self._shapes[schema_history.newest.table] = shape
        return shape

    def shaped(self, changes: Sequence[Change]) -> list[Change | Result]:
        """Returns each change in the store's shape, or the result of one that the store does not get."""
        return [self._shaped(change) for change in changes]

    def _shaped(self, change: Change) -> Change | Result:
        try:
            return self._shapes[change.table].change(change) or _STALE
        except ComputationError as error:
            return Result(Outcome.REJECTED, str(error))


def _left_out(origin: SourceOperation | None) -> SourceOperation | None:
    """Returns the origin of a row that a condition leaves out."""
    return origin and SourceOperation("n" if origin.operation in ("c", "r") else "x", origin.at_us)


def _on_text(mask: Callable[[str], str]) -> Callable[[Json], Json]:
    """Returns the mask as a function of a text. Masks are made for latin-1 views of UTF-8, which capture uses."""
    return lambda value: mask(value.encode("utf-8", "surrogatepass").decode("latin-1")).encode("latin-1").decode()

"""The SQL statements that read existing rows in chunks. Pure: names, keys and conditions become statements.

A key is compared and sorted exactly as its unique index does it, with the index's own operators and collations. With
any other order the index could not be used. And rows would be left out where the column's own collation takes two keys
for equal that the index distinguishes (a nondeterministic one), because a chunk continues above the last key.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from cdc.model.events import Column, TableId
from cdc.ports.chunk_reader import WATERMARK_PREFIX, Key

QualifiedName = tuple[str, str]  # schema, name

# Indexes into KeyColumn.operators: btree's strategies, in their order.
_BELOW, _UP_TO, _EQUAL, _FROM, _ABOVE = range(5)

# The operators for a key whose index is not a btree.
BUILT_IN_OPERATORS: Final[tuple[QualifiedName, ...]] = tuple(
    ("pg_catalog", operator) for operator in ("<", "<=", "=", ">=", ">")
)

# Everything that identifies the described table. It is a statement of its own, so that its transaction snapshot is
# taken after the wait for the lock. Storage is not part of it: TRUNCATE does not change the description.
_DESCRIPTION: LiteralString = """
SELECT pg_current_snapshot()::text,
       concat_ws(';', c.oid, c.relkind, c.relreplident,
         (SELECT string_agg(format('%s %I %s %s %s', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated),
                            ',' ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
         (SELECT string_agg(concat_ws(' ', i.indisprimary, i.indisreplident, i.indkey, i.indclass, i.indcollation),
                            ',' ORDER BY i.indisprimary, i.indisreplident, i.indkey::text, i.indclass::text)
            FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = {schema} AND c.relname = {name}
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a table's key, as its index orders it."""

    name: str
    type: QualifiedName  # without modifier; for a domain, its base type
    collation: QualifiedName | None  # None: the type has none
    operators: tuple[QualifiedName, ...]  # < <= = >= >
    is_domain: bool = False
    is_default: bool = True  # the operators are those that ORDER BY uses for the type


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """The description of a table that its chunks require."""

    name: TableId
    fingerprint: str
    is_partitioned: bool
    key: tuple[KeyColumn, ...]
    row_filter: str | None = None  # row filter of the publication

    @property
    def order(self) -> str:
        columns = [(column.name, column.type, column.collation, column.operators) for column in self.key]
        return hashlib.sha256(repr(columns).encode()).hexdigest()[:32]

    @property
    def rows(self) -> sql.Composed:
        """The clause behind FROM: without inheritance children, which are tables of their own; partitions are not."""
        return sql.SQL("{} {}").format(_only(self.is_partitioned), sql.Identifier(*self.name))

    @property
    def filter(self) -> sql.SQL:
        return sql.SQL(f"WHERE ({self.row_filter}\n)" if self.row_filter else "")


def begin_statement(table: TableId, *, is_partitioned: bool, prefers_index: bool) -> sql.Composed:
    """Opens the transaction of a chunk. The last result is one row with transaction snapshot and description; no row if
    the table does not exist.

    `prefers_index`: use the order of the index even if the planner takes a sort for cheaper. One sort of a large table
    may be cheaper than many random reads, but each chunk would repeat it.
    """
    return sql.SQL(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {only} {table} IN ACCESS SHARE MODE; {planner}"
        + _DESCRIPTION
    ).format(
        only=_only(is_partitioned),
        table=sql.Identifier(*table),
        planner=sql.SQL("SET LOCAL enable_sort = off; " if prefers_index else ""),
        schema=sql.Literal(table.schema),
        name=sql.Literal(table.name),
    )


def watermark_statement(nonce: str) -> sql.Composed:
    """Writes a watermark, in a transaction of its own."""
    return sql.SQL("SELECT pg_catalog.pg_logical_emit_message(true, {}::text, {}::text)").format(
        sql.Literal(WATERMARK_PREFIX), sql.Literal(nonce)
    )


def chunk_statement(
    table: ChunkTable,
    columns: Sequence[Column],
    rows_max: int,
    *,
    where: str | None = None,
    after: Key | None = None,
    up_to: Key | None = None,
    keys: Sequence[Key] | None = None,
) -> sql.Composed:
    """Copies the first `rows_max` published rows above `after`, up to `up_to`, that meet an operator's condition
    (`where`) and have one of these keys."""
    # A condition may end in a comment, which the newline ends.
    wanted: list[sql.Composable] = [sql.SQL(f"({text}\n)") for text in (table.row_filter, where) if text]
    wanted += _in_range(table.key, after, up_to)
    if keys is not None:
        wanted.append(_among(table.key, keys))
    return sql.SQL("COPY (SELECT {} FROM {} {} ORDER BY {} LIMIT {}) TO STDOUT").format(
        _names(column.name for column in columns), table.rows, _where(wanted), _order(table.key), sql.Literal(rows_max)
    )


def condition_statement(table: ChunkTable, condition: str) -> sql.Composed:
    """Fails if the condition is valid only within the parentheses around it, as `x) OR (y` would be."""
    return sql.SQL("EXPLAIN SELECT FROM {} WHERE {}").format(table.rows, sql.SQL(condition))


def sample_statement(table: ChunkTable, percent: float) -> sql.Composed:
    """Copies the keys of a random sample of the table's pages, in ascending order."""
    return sql.SQL("COPY (SELECT {} FROM {} TABLESAMPLE SYSTEM ({}) {} ORDER BY {}) TO STDOUT").format(
        _names(column.name for column in table.key),
        table.rows,
        sql.SQL(f"{percent:.6f}"),
        table.filter,
        _order(table.key),
    )


def reread_statement(
    table: ChunkTable,
    columns: Sequence[str],
    keys: Sequence[Key],
    *,
    after: Key | None = None,
    up_to: Key | None = None,
) -> sql.Composed:
    """Copies columns of the rows with these keys, as far as they lie in the range, in the order of `keys`: index of the
    key, xmin of the row (NULL if there is none), the given key as PostgreSQL prints it, the row's key, the columns. If
    the key's index takes several rows for equal, there is a line for each."""
    key = [column.name for column in table.key]
    asked = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(sql.Literal(i), sql.SQL(", ").join(map(_literal, table.key, values)))
        for i, values in enumerate(keys)
    )
    is_same = sql.SQL(" AND ").join(
        _comparison(column, _EQUAL, sql.Identifier("asked", column.name), "found") for column in table.key
    )
    # Our columns have a space in their names, so that they differ from the table's in practice.
    return sql.SQL(
        'COPY (SELECT "ws row", "ws xmin", {asked_key}, {row}'
        ' FROM (SELECT * FROM (VALUES {asked}) AS asked ("ws row", {key}) {range}) AS asked'
        ' LEFT JOIN (SELECT xmin AS "ws xmin", {names} FROM {rows} {filter}) AS found ON {is_same}'
        ' ORDER BY "ws row") TO STDOUT'
    ).format(
        asked_key=sql.SQL(", ").join(sql.Identifier("asked", name) for name in key),
        row=sql.SQL(", ").join(sql.Identifier("found", name) for name in (*key, *columns)),
        asked=asked,
        key=_names(key),
        range=_where(_in_range(table.key, after, up_to)),
        names=_names(dict.fromkeys((*key, *columns))),
        rows=table.rows,
        filter=table.filter,
        is_same=is_same,
    )


def _in_range(key: Sequence[KeyColumn], after: Key | None, up_to: Key | None) -> list[sql.Composable]:
    return [_compare(key, end, to) for end, to in ((after, _ABOVE), (up_to, _UP_TO)) if end is not None]


def _where(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("")


def _among(key: Sequence[KeyColumn], keys: Sequence[Key]) -> sql.Composable:
    """The key is one of `keys`."""
    if len(key) == 1:
        values = sql.SQL(", ").join(_literal(key[0], values[0]) for values in keys)
        return _comparison(key[0], _EQUAL, sql.SQL("ANY (ARRAY[{}])").format(values))
    equal = (
        sql.SQL(" AND ").join(
            _comparison(column, _EQUAL, _literal(column, value)) for column, value in zip(key, values, strict=True)
        )
        for values in keys
    )
    return sql.SQL("(({}))").format(sql.SQL(") OR (").join(equal))


def _compare(key: Sequence[KeyColumn], values: Key, to: int) -> sql.Composable:
    """The key is above `values` (`to` is _ABOVE), or at most equal to them (_UP_TO)."""
    assert len(key) == len(values), "a cursor has a value for each column of the key"
    operators = {column.operators[to] for column in key}
    if len(key) > 1 and len(operators) == 1:
        # The form for which PostgreSQL uses an index on several columns.
        return sql.SQL("ROW({}) {} ROW({})").format(
            sql.SQL(", ").join(map(_compared, key)),
            _operator(operators.pop()),
            sql.SQL(", ").join(map(_literal, key, values)),
        )
    return _compare_each(key, values, to)


def _compare_each(key: Sequence[KeyColumn], values: Key, to: int) -> sql.Composable:
    """Compares column by column, if the operators have different names: those of an extension's type beside built-in
    ones."""
    column, value = key[0], _literal(key[0], values[0])
    if len(key) == 1:
        return _comparison(column, to, value)
    or_equal, strictly = (_FROM, _ABOVE) if to == _ABOVE else (_UP_TO, _BELOW)
    # The first condition follows from the others, but lets the index be used.
    return sql.SQL("({} AND ({} OR ({} AND {})))").format(
        _comparison(column, or_equal, value),
        _comparison(column, strictly, value),
        _comparison(column, _EQUAL, value),
        _compare_each(key[1:], values[1:], to),
    )


def _comparison(column: KeyColumn, place: int, other: sql.Composable, side: str | None = None) -> sql.Composed:
    """Compares the column with `other`. `place`: the index of the operator; `side`: the table, if there are several."""
    return sql.SQL("{} {} {}").format(_compared(column, side), _operator(column.operators[place]), other)


def _order(key: Sequence[KeyColumn]) -> sql.Composed:
    return sql.SQL(", ").join(map(_ordered, key))


def _ordered(column: KeyColumn) -> sql.Composable:
    # Without a cast, which would hide the order of the index from the planner.
    expression = _collated(sql.Identifier(column.name), column)
    if column.is_default:
        return expression
    return sql.SQL("{} USING {}").format(expression, _operator(column.operators[_BELOW]))


def _compared(column: KeyColumn, side: str | None = None) -> sql.Composable:
    """One side of a comparison. A domain is cast, because operators of a pseudo-type such as anyenum do not apply to
    it."""
    name = sql.Identifier(column.name) if side is None else sql.Identifier(side, column.name)
    expression = sql.SQL("{}::{}").format(name, sql.Identifier(*column.type)) if column.is_domain else name
    return _collated(expression, column)


def _collated(expression: sql.Composable, column: KeyColumn) -> sql.Composable:
    if column.collation is None:
        return expression
    return sql.SQL("{} COLLATE {}").format(expression, sql.Identifier(*column.collation))


def _literal(column: KeyColumn, value: str) -> sql.Composed:
    # The quoted name of a type has no default modifier: bit is not bit(1), char not char(1).
    return sql.SQL("{}::{}").format(sql.Literal(value), sql.Identifier(*column.type))


def _operator(operator: QualifiedName) -> sql.Composed:
    schema, name = operator
    return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name))


def _only(is_partitioned: bool) -> sql.SQL:
    """Inheritance children are tables of their own; partitions are not."""
    return sql.SQL("" if is_partitioned else "ONLY")


def _names(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))

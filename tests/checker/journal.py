"""The source's own account of its changes: a trigger writes each row change into a table that is not published, in the
same transaction. So the journal holds exactly what was committed, and the topics can be held against it event by event.

PostgreSQL itself prints the rows in the records' `readable` form, for the journal and for the final comparison: the
judge converts nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from tests.checker.records import Row, parse

Keys = Mapping[str, Sequence[str]]
"""Table → columns of its record key, where these are not its own key's."""

SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}

_COLUMNS: LiteralString = """
SELECT a.attname::text,
       -- a domain's base type, of an array's elements too
       coalesce(e.typbasetype::regtype::text || '[]', coalesce(nullif(t.typbasetype, 0), t.oid)::regtype::text),
       t.typcategory = 'A' AND t.typlen = -1
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typtype = 'd'
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ORDER BY a.attnum
"""
_KEY: LiteralString = """
SELECT a.attname::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = %s::regclass AND k.place <= i.indnkeyatts
   AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
 ORDER BY k.place
"""

_NOTE_TRUNCATE: LiteralString = """
CREATE FUNCTION judge.note_truncate() RETURNS trigger LANGUAGE plpgsql AS $judge$ BEGIN
  INSERT INTO judge.journal (xid, lsn, table_name, op)
  VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), TG_ARGV[0], TG_OP);
  RETURN NULL;
END $judge$
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row change, or a TRUNCATE, as the source saw it."""

    number: int  # rises within a transaction, and from one change of a key to the next
    xid: int  # low 32 bits, which is what the protocol knows
    lsn: int  # where the log ended when the change was made: its transaction commits after it
    table: str  # schema.table
    op: str  # INSERT, UPDATE, DELETE, TRUNCATE; the last one has no rows
    old_key: Row | None
    old_row: Row | None
    new_key: Row | None
    new_row: Row | None

    @property
    def is_truncate(self) -> bool:
        return self.op == "TRUNCATE"


def install_journal(connection: psycopg.Connection, tables: Sequence[str], keys: Keys | None = None) -> None:
    """Make the journal and the triggers of each table (`schema.table`). Before the first row is written."""
    connection.execute("CREATE SCHEMA judge")
    connection.execute(
        "CREATE TABLE judge.journal (number bigserial, xid xid8 NOT NULL, lsn pg_lsn NOT NULL,"
        " table_name text NOT NULL, op text NOT NULL, old_key jsonb, old_row jsonb, new_key jsonb, new_row jsonb)"
    )
    connection.execute(_NOTE_TRUNCATE)
    for number, table in enumerate(tables):
        columns, key = _shape(connection, table, keys or {})
        function = sql.Identifier("judge", f"note_{number}")
        settings = sql.SQL(" ").join(
            sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in SETTINGS.items()
        )
        connection.execute(
            sql.SQL(
                "CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {settings} AS $judge$ BEGIN"
                " INSERT INTO judge.journal (xid, lsn, table_name, op, old_key, old_row, new_key, new_row) VALUES"
                " (pg_current_xact_id(), pg_current_wal_insert_lsn(), {table}, TG_OP,"
                " CASE WHEN TG_OP <> 'INSERT' THEN {old_key} END, CASE WHEN TG_OP <> 'INSERT' THEN {old_row} END,"
                " CASE WHEN TG_OP <> 'DELETE' THEN {new_key} END,"
                " CASE WHEN TG_OP <> 'DELETE' THEN {new_row} END); RETURN NULL; END $judge$"
            ).format(
                function=function,
                settings=settings,
                table=sql.Literal(table),
                old_key=_object(key, "OLD"),
                old_row=_object(columns, "OLD"),
                new_key=_object(key, "NEW"),
                new_row=_object(columns, "NEW"),
            )
        )
        connection.execute(
            sql.SQL(
                "CREATE TRIGGER judge AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION {}()"
            ).format(_name(table), function)
        )
        connection.execute(
            sql.SQL(
                "CREATE TRIGGER judge_truncate AFTER TRUNCATE ON {} FOR EACH STATEMENT"
                " EXECUTE FUNCTION judge.note_truncate({})"
            ).format(_name(table), sql.Literal(table))
        )


def read_journal(connection: psycopg.Connection) -> list[Entry]:
    """All that was committed, by number."""
    return [
        Entry(number, xid & 0xFFFFFFFF, lsn, table, op, *map(_row, rows))
        for number, xid, lsn, table, op, *rows in connection.execute(
            "SELECT number, xid::text::int8, (lsn - '0/0')::int8, table_name, op, old_key::text, old_row::text,"
            " new_key::text, new_row::text FROM judge.journal ORDER BY number"
        )
    ]


def read_rows(
    connection: psycopg.Connection, tables: Sequence[str], keys: Keys | None = None
) -> dict[str, list[tuple[Row, Row]]]:
    """(key, row) of all rows of each table, at one point in time, in the records' form."""
    found: dict[str, list[tuple[Row, Row]]] = {}
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for name, value in SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        for table in tables:
            columns, key = _shape(connection, table, keys or {})
            query = sql.SQL("SELECT ({})::text, ({})::text FROM {} AS r").format(
                _object(key, "r"), _object(columns, "r"), _name(table)
            )
            found[table] = [(parse(k), parse(row)) for k, row in connection.execute(query)]
    return found


def _row(text: str | None) -> Row | None:
    return None if text is None else cast("dict[str, Any]", parse(text))


def _shape(
    connection: psycopg.Connection, table: str, keys: Keys
) -> tuple[Mapping[str, sql.Composable], Mapping[str, sql.Composable]]:
    """Column → expression over a column reference `{}`, for all columns and for the key's."""
    name = _name(table).as_string(connection)
    columns = {
        column: _in_readable_form(type_name, is_array)
        for column, type_name, is_array in connection.execute(_COLUMNS, (name,))
    }
    key = keys.get(table) or [column for (column,) in connection.execute(_KEY, (name,))]
    return columns, {column: columns[column] for column in key}


def _in_readable_form(type_name: str, is_array: bool) -> sql.SQL:
    """The jsonb of a value, as the records' description says for its type."""
    if is_array:
        is_plain = type_name in ("boolean[]", "smallint[]", "integer[]", "bigint[]")
        elements = "{0}" if is_plain else "{0}::text[]"
        # Subscripts that do not start at 1 stand before the elements: [-2:0]={...}
        return sql.SQL("CASE left({0}::text, 1) WHEN '[' THEN to_jsonb({0}::text) ELSE to_jsonb(" + elements + ") END")
    match type_name:
        case "boolean" | "smallint" | "integer" | "bigint":
            return sql.SQL("to_jsonb({})")
        case "real" | "double precision":
            return sql.SQL(
                "CASE WHEN {0}::text IN ('NaN', 'Infinity', '-Infinity') THEN to_jsonb({0}::text)"
                " ELSE {0}::text::jsonb END"
            )
        case "timestamp without time zone":
            return sql.SQL(
                "CASE WHEN isfinite({0}) AND extract(year FROM {0}) BETWEEN 1 AND 9999"
                " THEN to_jsonb(replace({0}::text, ' ', 'T')) ELSE to_jsonb({0}::text) END"
            )
        case "timestamp with time zone":
            return sql.SQL(
                "CASE WHEN isfinite({0}) AND extract(year FROM {0}) BETWEEN 1 AND 9999"
                " THEN to_jsonb(replace(replace({0}::text, ' ', 'T'), '+00', 'Z')) ELSE to_jsonb({0}::text) END"
            )
        case "bytea":
            return sql.SQL("to_jsonb(replace(encode({}, 'base64'), E'\\n', ''))")
        case _:
            return sql.SQL("to_jsonb({}::text)")


def _object(columns: Mapping[str, sql.Composable], row: str) -> sql.Composable:
    pairs: Iterator[sql.Composable] = (
        sql.SQL("jsonb_build_object({}, {})").format(
            sql.Literal(name),
            cast("sql.SQL", expression).format(sql.SQL(".").join([sql.SQL(row), sql.Identifier(name)])),
        )
        for name, expression in columns.items()
    )
    return sql.SQL("(") + sql.SQL(" || ").join(pairs) + sql.SQL(")")


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))

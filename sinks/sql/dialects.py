"""The differences between the databases that the SQL sink can write. A new database is one more entry in DIALECTS."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Insert, Table, text
from sqlalchemy.dialects import postgresql, sqlite

from cdc.model.events import Column, TableId
from sinks.errors import RefusedError
from sinks.records import encode_json
from sinks.sql.types import ColumnForm, postgres_form, sqlite_form

CONNECT_TIMEOUT_S: Final = 5
_DIGEST_CHARS: Final = 12
_CAPITALS: Final = re.compile("[A-Z]")
_ENCODED_OR_CAPITAL: Final = re.compile("(%[0-9A-F]{2})|[A-Z]")

Row = dict[str, Any]  # stage column → value


class StagedForm(Protocol):
    """The part of `sinks.sql.tables.TableForm` that the stage needs."""

    at: dict[str, str]  # column → its name in the stage
    forms: dict[str, ColumnForm]
    stage: Table


class Probe(Protocol):
    """Writes one value as `fill` does, and raises the database's error if it refuses the value."""

    def __call__(self, connection: Connection, form: StagedForm, packed: Any, column: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of database."""

    driver: str  # SQLAlchemy's name of dialect and driver
    options: Mapping[str, Any]  # of a connection, as the driver takes them
    has_schemas: bool
    folds_case: bool  # names that differ only in the case of A to Z are the same
    alters_types: bool  # ALTER TABLE can change a column's type; the type restricts values
    name_bytes_max: int
    form: Callable[[Column, str | None], ColumnForm]
    insert: Callable[[Table], Any]  # an INSERT that supports ON CONFLICT
    pack: Callable[[Row], tuple[Any, int]]  # returns a row in the form for `fill`, and its size in bytes
    fill: Callable[[Connection, StagedForm, Sequence[Any]], None]  # writes packed rows into the stage
    # Reads one column of a packed row as `fill` does, to find the column that is refused.
    probe: Probe
    # Returns a value that a column's form has written as the text of a literal, for a column's default.
    literal: Callable[[Connection, ColumnForm, Any], str]
    empty: str  # what a statement that deletes all rows of a table begins with
    begin: str | None  # the statement that begins a writing transaction; None: the driver begins it
    settings: tuple[str, ...]  # statements for each new connection
    # Reads a value that each start of a server has for itself, also where a pooler hides that another one has taken
    # over; None: the database is a file.
    process: str | None
    swap_settings: tuple[str, ...]  # statements of a transaction that renames tables
    # SELECTs with the parameters :schema and :name of a table. What somebody else made that belongs to the table, and
    # would not follow its name: a text for each. Statements that give a table of the same name what readers may do.
    dependents: str
    rights: str | None

    def folded(self, name: str) -> str:
        """Returns the same text for names that are the same to the database."""
        return _CAPITALS.sub(lambda found: found[0].lower(), name) if self.folds_case else name

    def own_name(self, source: str) -> str:
        """Returns a text for the name of an own table. Texts of different tables are never the same to the database.
        `source`: the source table's key, in which characters are percent-encoded."""
        if not self.folds_case:
            return source
        return _ENCODED_OR_CAPITAL.sub(lambda found: found[0] if found[1] else f"%{ord(found[0]):02X}", source)

    def bounded(self, name: str) -> str:
        """Returns the name; if it is too long, its beginning with a digest of the whole name."""
        if len(name.encode()) <= self.name_bytes_max:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
        kept = name.encode()[: self.name_bytes_max - _DIGEST_CHARS - 1].decode(errors="ignore")
        return f"{kept}~{digest}"

    def place(self, template: str | None, table: TableId) -> tuple[str | None, str]:
        """Returns schema and name of the readers' table. Raises RefusedError for a name that the database would
        truncate.
        """
        parts = (template or ("{schema}.{table}" if self.has_schemas else "{schema}_{table}")).rpartition(".")
        schema, name = (part.format(schema=table.schema, table=table.name) for part in (parts[0], parts[2]))
        if schema and not self.has_schemas:
            raise RefusedError(
                f"SQL table of {table}: this database has no schemas, so {template!r} can't name one",
                "write a name without a dot in shapes, such as {schema}_{table}",
            )
        if max(len(schema.encode()), len(name.encode())) > self.name_bytes_max:
            raise RefusedError(
                f"SQL table of {table}: the name {name!r} is longer than {self.name_bytes_max} bytes",
                "set another table in the sink's shapes",
            )
        return schema or None, name


def _pack_as_json(row: Row) -> tuple[bytes, int]:
    packed = encode_json(row)
    return packed, len(packed)


def _fill_from_json(connection: Connection, form: StagedForm, packed: Sequence[bytes]) -> None:
    """Inserts all rows by one parameter: a JSON array, from which the server reads each value as a text of its type."""
    names = ["number", "version", "is_deleted", *form.at.values()]
    values, read_as = _json_columns(form, form.forms)
    connection.execute(
        text(
            f"INSERT INTO {form.stage.name} ({', '.join(names)}) SELECT number, version, is_deleted, {values} "  # noqa: S608
            f"FROM json_to_recordset(CAST(:rows AS json)) AS s(number bigint, version bigint, is_deleted boolean, "
            f"{read_as})"
        ),
        {"rows": (b"[%b]" % b",".join(packed)).decode()},
    )


def _probe_json(connection: Connection, form: StagedForm, packed: bytes, column: str) -> None:
    values, read_as = _json_columns(form, [column])
    connection.execute(
        text(f"SELECT {values} FROM json_to_recordset(CAST(:rows AS json)) AS s({read_as})"),  # noqa: S608
        {"rows": f"[{packed.decode()}]"},
    )


def _json_columns(form: StagedForm, names: Iterable[str]) -> tuple[str, str]:
    """Returns the select list, and the column definitions for json_to_recordset. Types come from this module or from
    the configuration.
    """
    columns = [(form.at[name], form.forms[name]) for name in names]
    values = (at if held.read_as == held.ddl else f"CAST({at} AS {held.ddl})" for at, held in columns)
    return ", ".join(values), ", ".join(f"{at} {held.read_as}" for at, held in columns)


def _postgres_literal(connection: Connection, form: ColumnForm, value: Any) -> str:
    """The server reads the value as it reads those of rows, and prints it so that the type reads the same again."""
    statement = text(
        f"SELECT quote_literal(CAST(CAST(v AS {form.ddl}) AS text)) "  # noqa: S608
        f"FROM json_to_recordset(CAST(:rows AS json)) AS s(v {form.read_as})"
    )
    return str(connection.execute(statement, {"rows": encode_json([{"v": value}]).decode()}).scalar_one())


def _sqlite_literal(connection: Connection, form: ColumnForm, value: Any) -> str:
    del form
    return str(connection.execute(text("SELECT quote(:value)"), {"value": value}).scalar_one())


def _pack_as_values(row: Row) -> tuple[Row, int]:
    return row, sum(len(value) if isinstance(value, str | bytes) else 8 for value in row.values())


def _fill_by_rows(connection: Connection, form: StagedForm, packed: Sequence[Row]) -> None:
    connection.execute(form.stage.delete())
    names = [column.name for column in form.stage.columns]
    if packed:
        connection.execute(form.stage.insert(), [{name: row.get(name) for name in names} for row in packed])


def _probe_nothing(connection: Connection, form: StagedForm, packed: Row, column: str) -> None:
    """Does nothing: values were checked before they were packed."""


def _postgres_insert(table: Table) -> Insert:
    return postgresql.insert(table)


def _sqlite_insert(table: Table) -> Insert:
    return sqlite.insert(table)


_POSTGRES_DEPENDENTS: Final = """
WITH t AS (
    SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = :name
)
SELECT DISTINCT CASE v.relkind WHEN 'm' THEN 'materialized view ' ELSE 'view ' END || v.oid::regclass
FROM t JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
JOIN pg_class AS v ON v.oid = r.ev_class WHERE v.oid <> t.oid
UNION SELECT 'constraint ' || quote_ident(k.conname) || ' of ' || k.conrelid::regclass
FROM t JOIN pg_constraint AS k ON k.confrelid = t.oid OR (k.conrelid = t.oid AND k.contype NOT IN ('p', 'n'))
UNION SELECT 'trigger ' || quote_ident(g.tgname) FROM t JOIN pg_trigger AS g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION SELECT 'policy ' || quote_ident(p.polname) FROM t JOIN pg_policy AS p ON p.polrelid = t.oid
UNION SELECT 'publication ' || quote_ident(b.pubname) FROM t JOIN pg_publication_rel AS m ON m.prrelid = t.oid
JOIN pg_publication AS b ON b.oid = m.prpubid
UNION SELECT 'index ' || i.indexrelid::regclass FROM t JOIN pg_index AS i ON i.indrelid = t.oid AND NOT i.indisprimary
JOIN pg_class AS x ON x.oid = i.indexrelid WHERE x.relname NOT LIKE 'watershed\\_%'
ORDER BY 1
"""

_POSTGRES_RIGHTS: Final = """
WITH t AS (
    SELECT c.*, c.oid AS table_oid, n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = :name
), held AS (
    SELECT nspname, relname, relowner, a.*, '' AS part FROM t, aclexplode(t.relacl) AS a
    UNION ALL SELECT nspname, relname, relowner, a.*, format(' (%I)', f.attname) FROM t
    JOIN pg_attribute AS f ON f.attrelid = t.table_oid AND NOT f.attisdropped, aclexplode(f.attacl) AS a
)
SELECT format('GRANT %s%s ON %I.%I TO %s%s', privilege_type, part, nspname, relname,
    CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM held WHERE grantee <> relowner
"""

DIALECTS: Final[dict[str, Dialect]] = {
    "postgresql": Dialect(
        "postgresql+psycopg",
        {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "watershed",
            "keepalives_idle": 30,
            "tcp_user_timeout": 60_000,  # ms; for a server that disappeared without closing the connection
            "prepare_threshold": None,  # a prepared statement must not outlive the columns that it names
        },
        has_schemas=True,
        folds_case=False,
        alters_types=True,
        name_bytes_max=63,
        form=postgres_form,
        insert=_postgres_insert,
        pack=_pack_as_json,
        fill=_fill_from_json,
        probe=_probe_json,
        literal=_postgres_literal,
        empty="TRUNCATE TABLE",
        begin=None,
        settings=(
            "SET client_encoding = 'UTF8'",
            "SET timezone = 'UTC'",
            "SET datestyle = 'ISO, YMD'",
            "SET intervalstyle = 'postgres'",
            "SET extra_float_digits = 1",
            "SET bytea_output = 'hex'",
            "SET lock_timeout = '30s'",
            # The server ends the transaction of a writer that is suspended while it holds a fence.
            "SET idle_in_transaction_session_timeout = '60s'",
        ),
        process="SELECT pg_postmaster_start_time()",
        # Whoever reads a table waits behind a transaction that waits to rename it.
        swap_settings=("SET LOCAL lock_timeout = '1s'",),
        dependents=_POSTGRES_DEPENDENTS,
        rights=_POSTGRES_RIGHTS,
    ),
    "sqlite": Dialect(
        "sqlite",
        {},
        has_schemas=False,
        folds_case=True,
        alters_types=False,
        name_bytes_max=200,
        form=sqlite_form,
        insert=_sqlite_insert,
        pack=_pack_as_values,
        fill=_fill_by_rows,
        probe=_probe_nothing,
        literal=_sqlite_literal,
        empty="DELETE FROM",
        begin="BEGIN IMMEDIATE",
        settings=("PRAGMA busy_timeout = 30000", "PRAGMA journal_mode = WAL"),
        process=None,
        swap_settings=("PRAGMA legacy_alter_table = ON",),  # a view keeps the name that it reads
        dependents=(
            "SELECT type || ' ' || name FROM sqlite_master WHERE tbl_name = :name AND type IN ('index', 'trigger') "
            "AND name NOT LIKE 'watershed\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_autoindex%' ESCAPE '\\' "
            "AND :schema IS NULL ORDER BY 1"
        ),
        rights=None,
    ),
}


def dialect_of(scheme: str) -> Dialect:
    """Returns the dialect for the scheme of the sink's url. Raises RefusedError for a database that the sink can't
    write.
    """
    known = DIALECTS.get("postgresql" if scheme == "postgres" else scheme)
    if known is None:
        raise RefusedError(
            f"the SQL sink can't write databases of {scheme or 'this kind'}",
            f"its url begins with one of: {', '.join(f'{name}://' for name in DIALECTS)}",
        )
    return known

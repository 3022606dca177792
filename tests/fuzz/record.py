"""Records what a real server sends for the value matrix, as seeds for mutation. Run: python -m tests.fuzz.record

The matrix in narrow tables, each with every shape of change that pgoutput has a message for; the same rows as COPY's
lines; and the messages that are no rows. Long messages are left out: mutations of short ones find the same mistakes.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.config.settings import SourceConfig
from cdc.model.control import SchemaRecord
from cdc.model.events import TableId, TableSchema
from cdc.postgres.catalog import read_table
from cdc.postgres.connection import connect
from tests.fuzz.seeds import RECORDED
from tests.support.value_matrix import TYPES, Typed, columns
from watershed.devstack.stack import open_stack

COLUMNS_OF_A_TABLE = 2
BYTES_MAX = 200


def record_table(
    connection: psycopg.Connection, superuser: psycopg.Connection, name: str, made: list[tuple[str, Typed]]
) -> dict[str, Any]:
    table = sql.Identifier(name)
    definitions = sql.SQL(", ").join(sql.SQL("{} " + c.type).format(sql.Identifier(column)) for column, c in made)
    connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {})").format(table, definitions))
    connection.execute(sql.SQL("ALTER PUBLICATION everything ADD TABLE {}").format(table))
    count = max(len(column.values) for _, column in made) + 1
    for i in range(count):
        values = [column.values[i] if i < len(column.values) else "NULL" for _, column in made]
        connection.execute(f"INSERT INTO {name} VALUES ({i}, {', '.join(values)})".encode())
    statement = sql.SQL("COPY (SELECT * FROM {} ORDER BY id) TO STDOUT").format(table)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        lines = [bytes(line) for line in copy]
    found = read_table(connection, TableId("public", name), None)
    schema = TableSchema(TableId("public", name), 1, found.oid, found.columns, found.key, f"shop.public.{name}")
    for statement_of in ("UPDATE {} SET id = id WHERE id < 2", "UPDATE {} SET id = 90 + id WHERE id < 2"):
        connection.execute(sql.SQL(statement_of).format(table))
    connection.execute(sql.SQL("DELETE FROM {} WHERE id > 90").format(table))
    kept = drain(superuser)
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))
    connection.execute(sql.SQL("UPDATE {} SET id = 95 WHERE id = 90").format(table))
    connection.execute(sql.SQL("DELETE FROM {} WHERE id = 95").format(table))
    return {
        "schema": json.loads(SchemaRecord.of(schema).encode()),
        "messages": kept,
        "messages_full": drain(superuser),
        "lines": [line.hex() for line in lines if len(line) <= BYTES_MAX],
    }


def drain(superuser: psycopg.Connection) -> list[str]:
    """Each different message, but for what only numbers tell apart."""
    found = superuser.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('recorded', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')"
    ).fetchall()
    messages = [bytes(data) for (data,) in found]
    once = {m[:1]: m for m in messages if m[:1] in b"BC"}
    return [m.hex() for m in [*once.values(), *(m for m in messages if m[:1] not in b"BC")] if len(m) <= BYTES_MAX]


def record(dsn: str, superuser_dsn: str) -> dict[str, Any]:
    config = SourceConfig.model_validate({"dsn": dsn, "tables": ("public.things",)})
    with connect(config) as connection, psycopg.connect(superuser_dsn, autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION vector SCHEMA public")
        connection.execute("SET search_path = public")
        connection.execute(TYPES)
        connection.execute("CREATE PUBLICATION everything")
        superuser.execute("SELECT pg_create_logical_replication_slot('recorded', 'pgoutput')")
        superuser.execute("SELECT pg_replication_origin_create('elsewhere')")
        made = list(columns(frozenset({"vector"})))
        tables = [
            record_table(connection, superuser, f"t{i // COLUMNS_OF_A_TABLE}", made[i : i + COLUMNS_OF_A_TABLE])
            for i in range(0, len(made), COLUMNS_OF_A_TABLE)
        ]
        connection.execute("TRUNCATE t0, t1 RESTART IDENTITY CASCADE")
        connection.execute("SELECT pg_logical_emit_message(true, 'watershed', 'content')")
        connection.execute("SELECT pg_logical_emit_message(false, 'other ë', 'x')")
        connection.execute("CREATE TABLE large (id int PRIMARY KEY, v text STORAGE EXTERNAL)")
        connection.execute("ALTER PUBLICATION everything ADD TABLE large")
        connection.execute("INSERT INTO large VALUES (1, repeat('x', 3000))")
        connection.execute("UPDATE large SET id = 2")
        superuser.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        superuser.execute("INSERT INTO large VALUES (3, 'x')")
        return {"tables": tables, "others": drain(superuser)}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="watershed-") as folder:
        Path(folder).chmod(0o711)
        with open_stack(Path(folder), temporary=True) as stack:
            endpoints = stack.start("postgres")
            found = record(endpoints.dsn, make_conninfo(endpoints.superuser_dsn, dbname="watershed"))
    text = json.dumps(found, indent=0, ensure_ascii=False, separators=(",", ":"))
    RECORDED.write_text(text + "\n", encoding="utf-8")
    print(f"{RECORDED}: {len(found['tables'])} tables, {sum(len(t['messages']) for t in found['tables'])} messages")


if __name__ == "__main__":
    main()

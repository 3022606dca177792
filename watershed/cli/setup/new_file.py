"""The text of a new configuration file, with comments, and the SQL that the source needs for it. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.events import TableId
from cdc.model.sql_names import sql_name


@dataclass(frozen=True, slots=True)
class TableCandidate:
    """A table of the database, and why it can't be captured as it is (empty: it can)."""

    table: TableId
    key: tuple[str, ...]
    trouble: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NewConfiguration:
    dsn: str  # with the role, without a password
    bootstrap_servers: str
    prefix: str
    slot: str  # also of the publication
    role: str
    has_role: bool
    is_logical: bool  # wal_level
    has_wal_limit: bool
    tables: Sequence[TableCandidate]


def source_sql(new: NewConfiguration) -> list[str]:
    """Statements for a superuser, or the owner of the tables, in order."""
    tables = [found.table for found in new.tables if not found.trouble]
    role = sql_name(new.role)
    statements = []
    if not new.is_logical:
        statements.append("ALTER SYSTEM SET wal_level = logical;  -- then restart PostgreSQL")
    if not new.has_wal_limit:
        statements.append("ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  -- what the disk can spare for the slot")
        statements.append("SELECT pg_reload_conf();")
    if new.has_role:
        statements.append(f"ALTER ROLE {role} LOGIN REPLICATION;  -- it exists, and keeps its password")
    else:
        statements.append(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '…';")
    for schema in dict.fromkeys(table.schema for table in tables):
        statements.append(f"GRANT USAGE ON SCHEMA {sql_name(schema)} TO {role};")
    statements += [f"GRANT SELECT ON {sql_name(*table)} TO {role};" for table in tables]
    if tables:
        names = ", ".join(f"ONLY {sql_name(*table)}" for table in tables)
        statements.append(
            f"CREATE PUBLICATION {sql_name(new.slot)} FOR TABLE {names} WITH (publish_via_partition_root = true);"
        )
    return statements


def configuration_text(new: NewConfiguration) -> str:
    """Returns YAML. Tables that can't be captured are comments, with the statement that would correct that."""
    lines = [
        "# Written by `cdc init`. `cdc check` reports what is missing; `cdc config schema` lists all keys.",
        "# A variable CDC__SECTION__KEY in the environment overrides this file.",
        "#",
        "# Statements that the source needs, for a superuser or the tables' owner:",
        *(f"#   {statement}" for statement in source_sql(new)),
        "",
        "source:",
        f"  dsn: {yaml_text(new.dsn)}",
        "  # Set the password in PGPASSWORD, ~/.pgpass or CDC__SOURCE__DSN, not here.",
        "  tables:                      # each with a primary key, or a unique index as replica identity",
    ]
    for found in new.tables:
        if not found.trouble:
            lines.append(f"    - {yaml_text(str(found.table))}  # key: {', '.join(found.key)}")
    for found in new.tables:
        if found.trouble:
            lines.append(f"    # - {yaml_text(str(found.table))}  # {found.trouble}")
            lines.append(f"    #     {found.remedy}")
    lines += [
        f"  publication: {yaml_text(new.slot)}",
        f"  slot: {yaml_text(new.slot)}  # created at the first start; it retains WAL while capture is down",
        "",
        "kafka:",
        f"  bootstrap_servers: {yaml_text(new.bootstrap_servers)}",
        "",
        "topics:",
        f"  prefix: {yaml_text(new.prefix)}                # {new.prefix}.public.orders, {new.prefix}.state, …",
        "  partitions: 4                # of each table's topic; can't be changed later",
        "  # replication_factor: 3      # otherwise as many replicas as the brokers give new topics",
        "",
        "# sinks:                         # then: cdc sink run search cache warehouse",
        '#   search: {url: "http://localhost:9200"}',
        '#   cache: {url: "redis://localhost:6379/0"}',
        "#   warehouse:",
        "#     catalog_uri: jdbc:sqlite:.watershed/warehouse/catalog.db",
        "#     location: .watershed/warehouse/tables",
        "",
        "http:                          # /readyz, /metrics, /v1/status; read-only",
        "  host: 127.0.0.1",
        "  port: 8480",
        "  sink_port: 8481",
    ]
    return "\n".join(lines) + "\n"


def yaml_text(value: str) -> str:
    """A scalar that YAML reads as this text. JSON's strings are YAML's."""
    is_plain = all(c.isascii() and (c.isalnum() or c in "._-") for c in value) and value[:1].isalpha()
    reserved = value.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return value if is_plain and not reserved else json.dumps(value, ensure_ascii=False)

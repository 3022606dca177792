"""The form of PostgreSQL's types in records and stores, as capture and the sinks make it of an example."""

from collections.abc import Iterator
from typing import Final

from cdc.config.store_shapes import SearchShape
from cdc.model.events import Column, TableId, TableSchema
from cdc.pgoutput.values import encoder_for
from sinks.search.mapping import Capabilities, fields_of
from sinks.sql.types import postgres_form, sqlite_form
from sinks.warehouse.columns import column_type

# name, oid, modifier, the oid of an array's elements, kind, an example as PostgreSQL prints it
EXAMPLES: Final = (
    ("boolean", 16, -1, 0, "b", "t"),
    ("smallint", 21, -1, 0, "b", "7"),
    ("integer", 23, -1, 0, "b", "7"),
    ("bigint", 20, -1, 0, "b", "9007199254740993"),
    ("real", 700, -1, 0, "b", "1.5"),
    ("double precision", 701, -1, 0, "b", "0.1"),
    ("numeric(10,2)", 1700, (10 << 16 | 2) + 4, 0, "b", "12.50"),
    ("numeric", 1700, -1, 0, "b", "12.50"),
    ("money", 790, -1, 0, "b", "$12.50"),
    ("text", 25, -1, 0, "b", "blue"),
    ("character varying(80)", 1043, 84, 0, "b", "blue"),
    ("character(8)", 1042, 12, 0, "b", "blue    "),
    ("bytea", 17, -1, 0, "b", "\\x0102"),
    ("date", 1082, -1, 0, "b", "2026-01-31"),
    ("time without time zone", 1083, -1, 0, "b", "12:00:00"),
    ("time with time zone", 1266, -1, 0, "b", "12:00:00+00"),
    ("timestamp without time zone", 1114, -1, 0, "b", "2026-01-31 12:00:00.5"),
    ("timestamp with time zone", 1184, -1, 0, "b", "2026-01-31 12:00:00.5+00"),
    ("interval", 1186, -1, 0, "b", "1 day 02:00:00"),
    ("uuid", 2950, -1, 0, "b", "0193b9a4-5d1c-7c0e-b8a3-b2f9a8f0a001"),
    ("json", 114, -1, 0, "b", '{"a": 1}'),
    ("jsonb", 3802, -1, 0, "b", '{"a": 1}'),
    ("inet", 869, -1, 0, "b", "10.0.0.1"),
    ("point", 600, -1, 0, "b", "(1,2)"),
    ("int4range", 3904, -1, 0, "b", "[1,5)"),
    ("an enum", 99_999, -1, 0, "e", "new"),
    ("a composite type", 99_998, -1, 0, "c", "(1,blue)"),
    ("integer[]", 1007, -1, 23, "b", "{1,2}"),
    ("text[]", 1009, -1, 25, "b", "{blue,green}"),
    ("numeric(10,2)[]", 1231, (10 << 16 | 2) + 4, 1700, "b", "{12.50}"),
)


def type_rows() -> Iterator[tuple[str, ...]]:
    """Returns a row for each type: its name, and its form in records, search, warehouse, PostgreSQL and SQLite."""
    for name, oid, modifier, element, kind, example in EXAMPLES:
        column = Column(
            name="c",
            type_oid=oid,
            type_modifier=modifier,
            type_name=name,
            nullable=True,
            type_kind=kind,
            base_type_oid=oid,
            element_oid=element,
        )
        schema = TableSchema(TableId("public", "t"), 1, 1, (column,), (), "shop.public.t")
        field = fields_of(schema, SearchShape(), Capabilities())["c"]
        yield (
            name,
            f"`{encoder_for(column)(example)}`",
            field["type"] if field.get("enabled", True) else "kept, not searched",
            column_type(column).sql,
            postgres_form(column).ddl,
            sqlite_form(column).ddl or "a column without type",
        )

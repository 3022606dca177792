"""Tables that every sink must be able to hold, and rows of them as records say them."""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from msgspec import structs

from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Json

# typname → (oid, format_type's name)
TYPES = {
    "bool": (16, "boolean"),
    "bytea": (17, "bytea"),
    "int8": (20, "bigint"),
    "int2": (21, "smallint"),
    "int4": (23, "integer"),
    "text": (25, "text"),
    "json": (114, "json"),
    "cidr": (650, "cidr"),
    "float4": (700, "real"),
    "float8": (701, "double precision"),
    "inet": (869, "inet"),
    "varchar": (1043, "character varying"),
    "date": (1082, "date"),
    "time": (1083, "time without time zone"),
    "timestamp": (1114, "timestamp without time zone"),
    "timestamptz": (1184, "timestamp with time zone"),
    "interval": (1186, "interval"),
    "numeric": (1700, "numeric"),
    "uuid": (2950, "uuid"),
    "jsonb": (3802, "jsonb"),
    "bool[]": (1000, "boolean[]"),
    "int4[]": (1007, "integer[]"),
    "text[]": (1009, "text[]"),
    "inet[]": (1041, "inet[]"),
    "numeric[]": (1231, "numeric[]"),
    "timestamptz[]": (1185, "timestamp with time zone[]"),
    "mood": (50_001, "mood"),
}
NUMERIC_12_2 = (12 << 16 | 2) + 4  # a type modifier, as pg_attribute.atttypmod has it


@dataclass(frozen=True)
class Table:
    """A schema with the types' catalog names, by which values are compared."""

    schema: TableSchema
    types: dict[str, str]  # column → typname

    @property
    def id(self) -> TableId:
        return self.schema.table

    def row(self, **values: Json) -> dict[str, Json]:
        """Every column; null where no value is given."""
        assert values.keys() <= self.types.keys()
        return {name: values.get(name) for name in self.types}

    def upsert(self, version: int, **values: Json) -> Change:
        row = self.row(**values)
        return Change(self.id, {name: row[name] for name in self.schema.key}, version, row, self.schema.version)

    def update(self, version: int, lacks: Collection[str], **values: Json) -> Change:
        """Of all columns but those that it lacks."""
        whole = self.upsert(version, **values)
        assert whole.row is not None
        row = {name: value for name, value in whole.row.items() if name not in lacks}
        return structs.replace(whole, row=row, unchanged=frozenset(lacks))

    def delete(self, version: int, **key: Json) -> Change:
        assert tuple(key) == self.schema.key
        return Change(self.id, key, version, None, self.schema.version)

    def tombstone(self, version: int, **key: Json) -> Change:
        assert tuple(key) == self.schema.key
        return Change(self.id, key, version, None, None)


def table(schema: str, name: str, key: tuple[str, ...], types: dict[str, str], **modifiers: int) -> Table:
    """`types`: column → typname, in attribute order."""
    columns = tuple(
        Column(
            name=column,
            type_oid=TYPES[typname][0],
            type_modifier=modifiers.get(column, -1),
            type_name=TYPES[typname][1],
            nullable=column not in key,
            type_kind="e" if typname == "mood" else "b",
            base_type_oid=TYPES[typname][0],
        )
        for column, typname in types.items()
    )
    oid = 16_384 + sum(map(ord, f"{schema}.{name}"))
    return Table(TableSchema(TableId(schema, name), 1, oid, columns, key, f"shop.{schema}.{name}"), types)


CUSTOMERS = table(
    "public",
    "customers",
    ("id",),
    {
        "id": "int8",
        "name": "text",
        "balance": "numeric",
        "exact": "numeric",
        "is_active": "bool",
        "joined_at": "timestamptz",
        "seen_at": "timestamp",
        "born": "date",
        "clock": "time",
        "rating": "float8",
        "level": "int2",
        "visits": "int4",
        "attributes": "jsonb",
        "raw": "json",
        "tags": "text[]",
        "grid": "int4[]",
        "flags": "bool[]",
        "prices": "numeric[]",
        "mood": "mood",
        "token": "uuid",
        "photo": "bytea",
        "span": "interval",
        "address": "inet",
        "addresses": "inet[]",
        "network": "cidr",
    },
    balance=NUMERIC_12_2,
)
ORDER_LINES = table(
    "public",
    "order_lines",
    ("order_id", "line_no"),
    {"order_id": "int8", "line_no": "int4", "quantity": "int4", "remark": "varchar"},
)
LABELS = table("public", "labels", ("name",), {"name": "text", "uses": "int8"})
PAIRS = table("public", "pairs", ("left", "right"), {"left": "text", "right": "text", "weight": "int4"})
MEASURES = table("public", "measures", ("at", "of"), {"at": "float8", "of": "int4", "remark": "text"})
# Legal in PostgreSQL when quoted.
ODD_NAMES = table(
    "Größe.eu",
    'Order "Items"/*:',
    ("Key Column",),
    {"Key Column": "text", "sel.ect": "int4", 'naïve "é"': "text"},
)

TEXTS = (
    "",
    " ",
    "plain words",
    "ünïcödé – 漢字 – 👩‍👩‍👧‍👦 – \u202eright to left",
    "quotes ' \" ` \\ \\n and \\u0000",
    "line\nbreak\r\nand\ttab",
    "control \x01\x1f\x7f\u0085\u2028",
    '{"json": [1, null]}',
    "null",
    "NaN",
    "%s {} $1 ; DROP TABLE x; --",
    "<script>alert(1)</script>",
    "a" * 300,
    "long text of many words " * 2_000,
    "one_long_word" * 4_000,
)
NUMERICS = (
    "0",
    "0.00",  # numeric has no negative zero
    "1.50",
    "1.5000",
    "NaN",
    "1234567890" * 10,
    "-0." + "0123456789" * 10,
    "9" * 60 + "." + "9" * 40,
)
VALUES: dict[str, tuple[Json, ...]] = {
    "bool": (True, False),
    "int2": (0, -32_768, 32_767),
    "int4": (0, -(2**31), 2**31 - 1, 7),
    "int8": (0, -(2**63), 2**63 - 1, 2**53 + 1),
    "float8": (0, 1.5, -1e300, 5e-324, 0.1, 1e15, "NaN", "Infinity", "-Infinity"),
    "text": TEXTS,
    "varchar": TEXTS,
    "json": ("null", "true", '{ "a" : 1,  "a" : 2 }', "[1e400, 12345678901234567890]"),
    "jsonb": ("null", "{}", '{"a": {"b": [1, 2.50, "x"]}, "ü": null}', '"text"', "[]"),
    "date": ("2024-02-29", "1970-01-01", "0001-01-01", "9999-12-31"),
    "time": ("00:00:00", "23:59:59.999999", "12:30:00.5"),
    "timestamp": ("2024-01-31T12:00:00", "2024-01-31T12:00:00.123456", "1969-12-31T23:59:59.9", "0001-01-01T00:00:00"),
    "timestamptz": ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00.000001Z", "9999-12-31T23:59:59.999999Z"),
    "interval": ("1 year 2 mons 3 days 04:05:06.789", "00:00:00", "-1 days"),
    "numeric": NUMERICS,
    "inet": ("10.0.0.1", "10.0.0.1/8", "2001:db8::1", "::/0"),
    "cidr": ("10.0.0.0/8", "10.0.0.1/32", "2001:db8::/32"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "123e4567-e89b-12d3-a456-426614174000"),
    "bytea": ("", "AAECAwT//g==", "bm90IHRleHQ="),
    "bool[]": ([], [True, None, False]),
    "int4[]": ([], [1, None, -3]),
    "text[]": ([], ["a", None, ""], ['with "quotes" {},\\', "ünï\n"]),
    "inet[]": ([], ["10.0.0.1", None, "10.0.0.1/8"]),
    "numeric[]": ([], ["1.50", None, "NaN"], ["9" * 100]),
    "mood": ("happy", "so so", "très ‘sad’"),
}

# PostgreSQL's array types have no depth; a typed store's column has one.
NESTED_ARRAYS: dict[str, tuple[Json, ...]] = {
    "grid": ([[1, 2], [3, 4]], [[[1], [2]], [[3], [None]]]),
    "tags": ([["a", "b"], ["c", None]],),
}


def values_of(table: Table, column: str) -> tuple[Json, ...]:
    """Values that every sink must give back as they are."""
    typname = table.types[column]
    if column == "balance":  # numeric(12,2)
        return ("0.00", "-1234567890.12", "9999999999.99", "1.50")
    return VALUES[typname]


def draw_row(random: Random, table: Table, key: dict[str, Json]) -> dict[str, Any]:
    """A row with this key; about one value in six is null. Long texts are rare."""
    row: dict[str, Any] = dict(key)
    for column in table.types:
        if column not in key:
            choices = values_of(table, column)
            value = random.choice(choices)
            if isinstance(value, str) and len(value) > 1_000 and random.random() < 0.9:
                value = f"{random.random():.6f}"
            row[column] = None if random.random() < 0.16 else value
    return {column: row[column] for column in table.types}

"""Rows of a real server, through the stream and through COPY: the same bytes, and the values that the server has."""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.config import SourceConfig
from cdc.errors import UnsupportedChangeError
from cdc.events import TableId, TableSchema
from cdc.formats.debezium import EnvelopeContext, OutRecord, TableEncoder
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import UNCHANGED, Begin, Commit, Message, Relation, Type, Update
from cdc.postgres.catalog import read_table
from cdc.postgres.connection import connect

THINGS = TableId("public", "things")
CONTEXT = EnvelopeContext("shop", "shop", 1, "0.1.0")

# name, type, values as SQL expressions. The table has as many rows as the longest list; NULL stands for the rest.
COLUMNS: list[tuple[str, str, list[str]]] = [
    ("big", "bigint", ["0", "-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    ("int_", "integer", ["0", "-2147483648", "2147483647"]),
    ("small", "smallint", ["-32768", "32767"]),
    ("oid_", "oid", ["0", "4294967295"]),
    ("text_", "text", ["''", r"E'quote \" back \\ tab \t newline \n cr \r \x01\x1f\x7f'", "'Zoë 😀 \u2028'", r"'\N'"]),
    ("words", "varchar", ["'NULL'", "'a,b'", "repeat('long ', 20000)"]),
    ("some", "varchar(20)", ["'t'", r"E'\b\f\v'"]),
    ("padded", "char(6)", ["'ab'", "''", "'äöü'"]),
    ("price", "numeric(12,2)", ["0", "-9999999999.99", "1.1"]),
    ("exact", "numeric", ["'NaN'", "'Infinity'", "'-Infinity'", "repeat('9', 100)::numeric", "1e-100", "1.10"]),
    ("double", "double precision", ["'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0.1", "1e300", "5e-324", "1e15"]),
    ("float_", "real", ["'NaN'", "'-Infinity'", "3.4028235e38", "1e-45", "0.1", "16777217"]),
    ("yes", "boolean", ["true", "false"]),
    ("day", "date", ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'2024-02-29'"]),
    ("time_", "time", ["'24:00:00'", "'00:00:00'", "'12:34:56.000001'"]),
    ("timetz_", "timetz", ["'12:34:56.1+05:30'"]),
    (
        "at",
        "timestamp",
        [
            *("'infinity'", "'-infinity'", "'0044-03-15 12:00:00.5 BC'", "'294276-12-31 23:59:59.999999'"),
            *("'9999-12-31 23:59:59.999999'", "'2024-01-31 12:00'", "'2024-01-31 12:00:00.10'", "'0001-01-01'"),
        ],
    ),
    (
        "attz",
        "timestamptz",
        [
            *("'infinity'", "'-infinity'", "'4713-01-02 00:00:00+00 BC'", "'10000-01-01 00:00:00+00'"),
            *("'2024-01-31 12:00:00.123+05:30'", "'1900-01-01 00:00:00+00'", "'2024-06-01 00:00:00.000001+02'"),
        ],
    ),
    ("doc", "jsonb", ["""'{"b": [1.10, null, "x\\"y\\n"], "a": "Zoë"}'""", "'null'", "'1e400'"]),
    ("raw", "json", [r"""'{"a": "\u0000", "a" : 1}'""", r"""E'{\n"a":\t1}'"""]),
    ("uuid_", "uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    ("mood", "mood", ["'fine'", "'so \"so\"'", "'null'"]),
    ("bytes", "bytea", [r"'\x'", r"'\x00ff5c0a'", "decode(repeat('ab', 3000), 'hex')"]),
    ("net", "inet", ["'192.168.0.1/24'", "'::1'"]),
    ("span", "interval", ["'1 year -2 mons 3 days -04:05:06.78'", "'0'", "'-178000000 years'"]),
    ("amount", "money", ["-1234.5"]),
    ("range_", "int4range", ["'[1,5)'", "'empty'"]),
    ("zones", "tstzrange", ["'[2024-01-01 00:00+00,)'"]),
    ("where_", "point", ["'(1.5,-2)'"]),
    ("bits", "varbit", ["B'101'"]),
    ("mac", "macaddr", ["'08:00:2b:01:02:03'"]),
    ("search", "tsvector", ["'a:1 ''b c'':2'"]),
    ("pair", "pair", ["ROW(1, 'a \"b\"')"]),
    ("positive", "positive", ["17"]),
    ("vector", "int2vector", ["'1 2 3'"]),
    ("char_", '"char"', ["'x'", r"'\377'"]),
    (
        "texts",
        "text[]",
        [
            "'{}'",
            r"""ARRAY['', 'NULL', 'null', 'a b', 'say "hi"', E'back\\slash', '{}', ',', E'\n', NULL, 'Zoë', ';']""",
            "ARRAY[['a', NULL], ['\"', 'd']]",
            "'[-1:0]={a,b}'",
            "ARRAY[[['x']]]",
            "ARRAY[repeat('\"', 5000)]",
        ],
    ),
    ("ints", "integer[]", ["'{1,-2,NULL}'", "'{{1,2},{3,4}}'", "'[0:1][2:3]={{1,2},{3,4}}'", "'{}'"]),
    ("numerics", "numeric(10,2)[]", ["'{1.10,NaN,NULL,-0.5}'"]),
    ("doubles", "double precision[]", ["'{0.1,NaN,1e300,NULL,-0}'"]),
    ("flags", "boolean[]", ["'{t,f,NULL}'"]),
    ("ats", "timestamptz[]", ["ARRAY['2024-01-31 12:00:00.5+00', 'infinity', NULL, '0044-03-15 BC']::timestamptz[]"]),
    ("plain_ats", "timestamp[]", ["ARRAY['2024-01-31 12:00:00.5', '-infinity']::timestamp[]"]),
    ("days", "date[]", ["'{2024-01-31,infinity}'"]),
    ("blobs", "bytea[]", [r"""ARRAY['\x00ff'::bytea, '\x', NULL]"""]),
    ("moods", "mood[]", ["""'{fine,"so \\"so\\"","null",NULL}'"""]),
    ("docs", "jsonb[]", ["""ARRAY['{"a": "b c"}'::jsonb, 'null', NULL]"""]),
    ("boxes", "box[]", ["'{(1,1),(0,0);(2,2),(1,1)}'"]),
    ("points", "point[]", ["ARRAY['(1,2)'::point]"]),
    ("uuids", "uuid[]", ["'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"]),
    ("named", "names", ["'{a,NULL,\"b c\"}'"]),
    ('od"d {n}\\ame', "text", ["'x'"]),
]
TYPES = """
    CREATE TYPE mood AS ENUM ('fine', 'so "so"', 'null');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN names AS text[];
"""
NUMBERS = {"bigint", "integer", "smallint", "oid", "double precision", "real", "positive"}


@dataclass
class Source:
    """A database with one published table, read through the SQL interface of logical decoding."""

    connection: psycopg.Connection
    schema: TableSchema = field(init=False)
    received: list[Message] = field(default_factory=list)  # by the last call of `records`

    def publish(self) -> None:
        """Everything from here on is in the log."""
        self.connection.execute("CREATE PUBLICATION everything FOR TABLE things")
        self.connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        found = read_table(self.connection, THINGS, None)
        self.schema = TableSchema(THINGS, 1, found.oid, found.columns, found.key, "shop.public.things")

    def messages(self) -> list[tuple[int, bytes, Message]]:
        """(lsn, bytes, decoded) of what the log holds since the last call."""
        found = self.connection.execute(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_binary_changes(current_database(), NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'everything')"
        ).fetchall()
        return [(int(lsn), data, decode(data, str(lsn))) for lsn, data in found]

    def records(self) -> list[OutRecord]:
        """The records of what the log holds since the last call."""
        out: list[OutRecord] = []
        self.received.clear()
        encoder: TableEncoder | None = None
        begin: Begin | None = None
        index = 0
        for lsn, data, message in self.messages():
            self.received.append(message)
            match message:
                case Begin():
                    begin, index = message, 0
                case Relation():
                    encoder = TableEncoder(self.schema, message, CONTEXT)
                case Commit():
                    assert begin is not None
                    assert message.commit_lsn == begin.final_lsn
                    assert message.commit_ts_us == begin.commit_ts_us
                case Type():
                    pass
                case _:
                    assert encoder is not None
                    assert begin is not None
                    encoder.start_transaction(begin.final_lsn, begin.commit_ts_us, begin.xid, None)
                    out += encoder.encode(data, 0, lsn, index, len(out), 17)
                    index += 1
        return out

    def copied(self) -> list[OutRecord]:
        """The records of the table's rows by COPY, in key order."""
        relation = next(m for _, _, m in self.messages() if isinstance(m, Relation))
        encoder = TableEncoder(self.schema, relation, CONTEXT)
        encoder.start_snapshot(1, 2)
        columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in self.schema.columns)
        statement = sql.SQL("COPY (SELECT {} FROM things ORDER BY id) TO STDOUT").format(columns)
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            return [encoder.copy_row(bytes(line), 1, i, i, 17) for i, line in enumerate(copy)]


@pytest.fixture
def source(fresh_database: str) -> Iterator[Source]:
    config = SourceConfig.model_validate({"dsn": fresh_database, "tables": ("public.things",)})
    with connect(config) as connection:
        connection.execute("SET search_path = public")
        yield Source(connection)


def create_things(source: Source) -> list[list[str]]:
    """The table of all types. Returns the SQL expressions of its rows."""
    source.connection.execute(TYPES)
    columns = sql.SQL(", ").join(sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind, _ in COLUMNS)
    source.connection.execute(sql.SQL("CREATE TABLE things (id int PRIMARY KEY, {})").format(columns))
    count = max(len(values) for _, _, values in COLUMNS)
    return [[values[i] if i < len(values) else "NULL" for _, _, values in COLUMNS] for i in range(count)]


def insert(source: Source, rows: list[list[str]]) -> None:
    with source.connection.transaction():
        for i, row in enumerate(rows):
            source.connection.execute(f"INSERT INTO things VALUES ({i}, {', '.join(row)})".encode())


def part(record: OutRecord, name: str) -> Any:
    assert isinstance(record[1], bytes)
    return json.loads(record[1])[name]


def bytes_of_row(record: OutRecord) -> bytes:
    """The bytes of `after`."""
    assert isinstance(record[1], bytes)
    head, separator, _ = record[1].partition(b',"source":{"version":')
    assert separator
    assert head.startswith(b'{"before":null,"after":')
    return head


def database_value(connection: psycopg.Connection, name: str, kind: str, row: int) -> Any:
    """What the server itself makes of the value, in the form that a record should hold."""

    def ask(expression: str) -> Any:
        query = sql.SQL("SELECT " + expression + " FROM things WHERE id = %s").format(column=sql.Identifier(name))
        found = connection.execute(query, [row]).fetchone()
        assert found is not None
        return found[0]

    text = ask("CASE WHEN {column} IS NOT NULL THEN format('%%s', {column}) END")  # unlike ::text, keeps char's padding
    if text is None:
        return None
    if kind.endswith("[]") or kind == "names":
        if ask("array_lower({column}, 1)") not in (None, 1):
            return text
        base = "text[]" if kind == "names" else kind
        return elements(ask("to_json({column}::text[])::text"), base.removesuffix("[]"))
    return scalar(text, kind) if kind != "bytea" else base64.b64encode(ask("{column}")).decode()


def elements(server_json: str, kind: str) -> Any:
    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(item) for item in value]
        return None if value is None else scalar(value, kind)

    return each(json.loads(server_json))


def scalar(text: str, kind: str) -> Any:
    if kind in NUMBERS:
        number = float(text) if kind in ("real", "double precision") else int(text)
        return number if math.isfinite(number) else text
    if kind == "boolean":
        return text in ("t", "true")
    if kind == "bytea":
        return base64.b64encode(bytes.fromhex(text[2:])).decode()
    if kind.startswith("timestamp") and text[10:11] == " " and not text.endswith("BC"):
        return text.replace(" ", "T").replace("+00", "Z")
    return text


def holes(messages: list[Message]) -> int:
    """How many values were not sent."""
    return sum(message.new.count(UNCHANGED) for message in messages if isinstance(message, Update))


def exactly(value: Any, kind: str) -> str:
    """Tells 1 from true and "1", 0.0 from -0.0, but not 1 from 1.0 in a column of doubles."""
    if kind in ("real", "double precision") and isinstance(value, int):
        value = float(value)
    return repr(value)


def test_every_type_comes_through_the_stream_as_the_server_has_it(source: Source) -> None:
    rows = create_things(source)
    source.publish()
    insert(source, rows)
    records = source.records()
    assert [json.loads(key) for key, _, _ in records] == [{"id": i} for i in range(len(rows))]
    for i, record in enumerate(records):
        after = part(record, "after")
        assert list(after) == ["id", *(name for name, _, _ in COLUMNS)]
        for name, kind, _ in COLUMNS:
            expected = database_value(source.connection, name, kind, i)
            assert (name, i, exactly(after[name], kind)) == (name, i, exactly(expected, kind))


def test_copy_gives_the_bytes_of_the_stream(source: Source) -> None:
    rows = create_things(source)
    source.publish()
    insert(source, rows)
    streamed = source.records()
    source.connection.execute("UPDATE things SET id = id")  # a relation message for the copying encoder
    copied = source.copied()
    assert [bytes_of_row(record) for record in copied] == [bytes_of_row(record) for record in streamed]
    assert [record[0] for record in copied] == [record[0] for record in streamed]


def test_a_full_old_row_fills_what_an_update_did_not_send(source: Source) -> None:
    rows = create_things(source)
    source.connection.execute("ALTER TABLE things REPLICA IDENTITY FULL")
    for name in ("words", "bytes", "texts"):
        source.connection.execute(
            sql.SQL("ALTER TABLE things ALTER {} SET STORAGE EXTERNAL").format(sql.Identifier(name))
        )
    source.publish()
    insert(source, rows)
    inserted = source.records()
    source.connection.execute("UPDATE things SET yes = NOT yes")
    updated = source.records()
    assert holes(source.received) == 3  # the large value in each of these columns
    assert [part(r, "before") for r in updated] == [part(r, "after") for r in inserted]
    for before, after in zip(inserted, updated, strict=True):
        row = part(before, "after")
        changed = row | {"yes": None if row["yes"] is None else not row["yes"]}
        assert part(after, "after") == changed
    source.connection.execute("DELETE FROM things")
    deleted = source.records()
    assert [part(r, "before") for r in deleted[::2]] == [part(r, "after") for r in updated]
    assert all(value is None for _, value, _ in deleted[1::2])


def test_without_the_old_row_a_large_value_that_was_not_sent_stops_capture(source: Source) -> None:
    source.connection.execute("CREATE TABLE things (id int PRIMARY KEY, large text STORAGE EXTERNAL, n int)")
    source.publish()
    source.connection.execute("INSERT INTO things VALUES (1, repeat('x', 10000), 1)")
    assert len(part(source.records()[0], "after")["large"]) == 10000
    source.connection.execute("UPDATE things SET n = 2")
    with pytest.raises(UnsupportedChangeError, match=r"public\.things at [0-9A-F]+/[0-9A-F]+#0, column large") as stop:
        source.records()
    assert "ALTER TABLE public.things REPLICA IDENTITY FULL" in stop.value.hint


def test_a_moved_key_is_delete_tombstone_and_create(source: Source) -> None:
    source.connection.execute("CREATE TABLE things (a int, n int NOT NULL, b text, PRIMARY KEY (b, a))")
    source.publish()
    source.connection.execute("INSERT INTO things VALUES (1, 7, 'x')")
    source.connection.execute("UPDATE things SET n = 8, b = 'y'")
    source.connection.execute("UPDATE things SET n = 9")
    source.connection.execute("DELETE FROM things")
    old, new = b'{"b":"x","a":1}', b'{"b":"y","a":1}'
    records = source.records()
    assert [(key, value is None) for key, value, _ in records] == [
        (old, False),  # insert
        (old, False),
        (old, True),
        (new, False),
        (new, False),  # update of another column
        (new, False),
        (new, True),
    ]
    assert [part(records[i], "op") for i in (0, 1, 3, 4, 5)] == ["c", "d", "c", "u", "d"]
    assert part(records[1], "before") == {"a": 1, "b": "x"}  # only what is known, no nulls in place of the rest
    assert part(records[4], "before") is None
    assert records[1][2] == [("__debezium.newkey", new)]
    assert records[3][2] == [("__debezium.oldkey", old)]


def test_a_large_key_that_was_not_sent_again_comes_from_the_old_key(source: Source) -> None:
    # Incompressible, so that it is stored apart, and small enough for the index.
    source.connection.execute(
        "CREATE TABLE things (id text STORAGE EXTERNAL PRIMARY KEY, filler text STORAGE PLAIN, n int)"
    )
    source.publish()
    source.connection.execute("INSERT INTO things VALUES (repeat('k', 2500), repeat('f', 3000), 1)")
    source.connection.execute("UPDATE things SET n = 2")
    inserted, updated = source.records()
    assert holes(source.received) == 1
    assert inserted[0] == updated[0]
    assert part(updated, "after") == {"id": "k" * 2500, "filler": "f" * 3000, "n": 2}
    assert part(updated, "op") == "u"

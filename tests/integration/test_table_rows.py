"""A table's shape and rows as PostgreSQL itself prints them."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.model.events import TableId
from watershed.verify.equality import same
from watershed.verify.table_rows import TableColumns, TableReader

T = TableId("public", "things")


@pytest.fixture
def connection(fresh_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(fresh_database, autocommit=True) as made:
        yield made


def config(connection: psycopg.Connection) -> SourceConfig:
    return SourceConfig(dsn=connection.info.dsn, tables=("public.things",))


def shape_of(connection: psycopg.Connection, table: TableId = T) -> TableColumns:
    with closing(TableReader(config(connection))) as reader:
        return reader.shape(table)


def rows_of(connection: psycopg.Connection, table: TableId = T) -> list[tuple[str | None, ...]]:
    with closing(TableReader(config(connection))) as reader:
        return list(reader.rows(reader.shape(table)))


def test_types_are_named_with_domains_resolved_and_arrays_by_their_element(connection: psycopg.Connection) -> None:
    connection.execute("""
        CREATE TYPE mood AS ENUM ('fine', 'bad');
        CREATE DOMAIN small AS int2 CHECK (VALUE > 0);
        CREATE DOMAIN smaller AS small;
        CREATE DOMAIN names AS text[];
        CREATE TABLE things (
          id int8 PRIMARY KEY, price numeric(12,2), at timestamptz(3), name varchar(20), code char(3), m mood,
          d smaller, moods mood[], ds smaller[], tags text[][], named names, vector int2vector, doc jsonb,
          twice int GENERATED ALWAYS AS (id * 2) STORED
        );
        ALTER TABLE things DROP COLUMN code;
    """)
    assert shape_of(connection).columns == {
        "id": "int8",
        "price": "numeric",
        "at": "timestamptz",
        "name": "varchar",
        "m": "public.mood",
        "d": "int2",
        "moods": "public.mood[]",
        "ds": "int2[]",
        "tags": "text[]",
        "named": "text[]",
        "vector": "int2vector",
        "doc": "jsonb",
    }


def test_the_key_is_the_primary_key_in_its_own_order(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE things (a int, b int, c int, PRIMARY KEY (c, a))")
    assert shape_of(connection).key == ("c", "a")


def test_the_key_is_the_replica_identitys_where_one_is_chosen(connection: psycopg.Connection) -> None:
    connection.execute("""
        CREATE TABLE things (a int PRIMARY KEY, b int NOT NULL);
        CREATE UNIQUE INDEX by_b ON things (b) INCLUDE (a);
        ALTER TABLE things REPLICA IDENTITY USING INDEX by_b;
    """)
    assert shape_of(connection).key == ("b",)


def test_rows_are_texts_whatever_they_hold(connection: psycopg.Connection) -> None:
    hard = ["", "NULL", "\\N", "\\.", "tab\tline\nreturn\rbackslash\\", "🌊 数据", "a,b"]
    connection.execute("CREATE TABLE things (id int PRIMARY KEY, v text, b bytea)")
    for number, value in enumerate([*hard, None]):
        connection.execute("INSERT INTO things VALUES (%s, %s, %s)", (number, value, b"\x00\xff\\"))
    rows = sorted(rows_of(connection), key=lambda row: int(row[0] or ""))
    assert [row[1] for row in rows] == [*hard, None]
    assert {row[2] for row in rows} == {"\\x00ff5c"}


def test_settings_of_role_and_database_do_not_change_the_text(connection: psycopg.Connection) -> None:
    for setting, value in {
        "datestyle": "'German, DMY'",
        "timezone": "'Asia/Kolkata'",
        "extra_float_digits": "-3",
        "bytea_output": "'escape'",
        "intervalstyle": "'sql_standard'",
    }.items():
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET {setting} = {value}'.encode())
    connection.execute("""
        CREATE TABLE things (id int PRIMARY KEY, at timestamptz, d date, f float8, b bytea, i interval);
        INSERT INTO things VALUES
          (1, '2024-01-31 12:00:00.5+00', '2024-01-31', 0.1::float8 + 0.2::float8, '\\xff', '1 day 2 hours');
    """)
    assert rows_of(connection) == [
        ("1", "2024-01-31 12:00:00.5+00", "2024-01-31", "0.30000000000000004", "\\xff", "1 day 02:00:00")
    ]


def test_all_tables_are_read_as_of_one_moment(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE things (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY)")
    others = TableId("public", "others")
    with closing(TableReader(config(connection))) as reader:
        assert list(reader.rows(reader.shape(T))) == []
        connection.execute("INSERT INTO others VALUES (1)")
        assert list(reader.rows(reader.shape(others))) == []
    assert rows_of(connection, others) == [("1",)]


def test_partitions_rows_are_the_tables_and_an_heirs_are_not(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE things (id int PRIMARY KEY); CREATE TABLE heir () INHERITS (things)")
    connection.execute("INSERT INTO things VALUES (1); INSERT INTO heir VALUES (2)")
    assert rows_of(connection) == [("1",)]
    connection.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    connection.execute("CREATE TABLE leaf PARTITION OF parted DEFAULT; INSERT INTO parted VALUES (3)")
    assert rows_of(connection, TableId("public", "parted")) == [("3",)]


def test_names_that_need_quotes(connection: psycopg.Connection) -> None:
    connection.execute('CREATE SCHEMA "s.p"; CREATE TABLE "s.p"."T ""q"" ä" ("Id" int PRIMARY KEY, "a,b" text)')
    connection.execute("""INSERT INTO "s.p"."T ""q"" ä" VALUES (1, 'x')""")
    assert rows_of(connection, TableId("s.p", 'T "q" ä')) == [("1", "x")]


def test_a_table_that_is_not_there_or_has_no_key_is_refused(connection: psycopg.Connection) -> None:
    with pytest.raises(SourceError, match=r"no table public\.things"):
        shape_of(connection)
    connection.execute("CREATE TABLE things (id int)")
    with pytest.raises(SourceError, match="has no key"):
        shape_of(connection)


def test_a_table_that_may_not_be_read_is_named(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE things (id int PRIMARY KEY)")
    connection.execute("REVOKE ALL ON things FROM CURRENT_USER")
    with pytest.raises(SourceError, match=r"may not read public\.things"):
        rows_of(connection)


@pytest.mark.parametrize(
    ("pg_type", "expression", "value"),
    [
        ("float8", "'-0'::float8", -0.0),
        ("float8", "'NaN'::float8", float("nan")),
        ("float8", "5e-324::float8", 5e-324),
        ("float4", "0.1::float4", 0.1),
        ("float4", "0.1::float4", 0.10000000149011612),
        ("numeric", "1.500::numeric", "1.500"),
        ("numeric", "'-Infinity'::numeric", "-Infinity"),
        ("bool", "true", True),
        ("timestamp", "'2024-01-31 12:00:00.120'::timestamp", "2024-01-31T12:00:00.12"),
        ("timestamptz", "'2024-01-31 12:00:00+02'::timestamptz", "2024-01-31T10:00:00Z"),
        ("timestamptz", "'0044-03-15 12:00:00+00 BC'::timestamptz", "0044-03-15 12:00:00+00 BC"),
        ("timestamptz", "'infinity'::timestamptz", "infinity"),
        ("bytea", "'\\x00ff10'::bytea", "AP8Q"),
        ("jsonb", '\'{"b":1,"a":[1,null]}\'::jsonb', '{"a": [1, null], "b": 1}'),
        ("text[]", "ARRAY['a', NULL, 'NULL', '', 'q\"\\', '{}', 'b,c']", ["a", None, "NULL", "", 'q"\\', "{}", "b,c"]),
        ("int4[]", "ARRAY[[1,2],[3,NULL]]", [[1, 2], [3, None]]),
        ("int4[]", "'[-2:0]={1,2,3}'::int4[]", "[-2:0]={1,2,3}"),
        ("text[]", "'{}'::text[]", []),
        ("bytea[]", "ARRAY['\\x00ff'::bytea]", ["AP8="]),
        ("box[]", "ARRAY[box '(1,1),(0,0)', box '(2,2),(1,1)']", ["(1,1),(0,0)", "(2,2),(1,1)"]),
        ("timestamptz[]", "ARRAY['2024-01-31 12:00:00+00'::timestamptz]", ["2024-01-31T12:00:00Z"]),
    ],
)
def test_what_postgresql_prints_is_what_the_comparison_expects(
    connection: psycopg.Connection, pg_type: str, expression: str, value: object
) -> None:
    connection.execute(f"CREATE TABLE things AS SELECT 1 AS id, {expression} AS v".encode())
    connection.execute("ALTER TABLE things ADD PRIMARY KEY (id)")
    assert shape_of(connection).columns["v"] == pg_type
    ((_, text),) = rows_of(connection)
    assert same(pg_type, text, value)
    assert not same(pg_type, text, "something else")

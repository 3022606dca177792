"""Chunks of tables with every kind of key, on real servers: each row once, in the order of the key's index."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.model.events import TableId, TableSchema
from cdc.pgoutput.relations import relation_of
from cdc.ports.chunk_reader import Key, TableDescribed
from cdc.postgres.chunk_statements import chunk_statement
from cdc.postgres.chunk_table import describe_for_chunks
from tests.conftest import PostgresServer, new_database
from tests.support.chunk_reading import Asked, Source, chunk, lines_of

# A type as extensions make them: case does not count, and its operators are not in pg_catalog. Comparisons in PL/pgSQL,
# because those in SQL would be inlined, which no extension's are.
FOREIGN_TYPE: LiteralString = """
CREATE SCHEMA ext;
CREATE TYPE ext.ci;
CREATE FUNCTION ext.ci_in(cstring) RETURNS ext.ci AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION ext.ci_out(ext.ci) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE ext.ci (INPUT = ext.ci_in, OUTPUT = ext.ci_out, LIKE = text, COLLATABLE = true, CATEGORY = 'S');
CREATE CAST (ext.ci AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS ext.ci) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE FUNCTION ext.cmp(ext.ci, ext.ci) RETURNS int IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN bttextcmp(lower($1::text), lower($2::text)); END';
CREATE FUNCTION ext.lt(ext.ci, ext.ci) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN ext.cmp($1, $2) < 0; END';
CREATE FUNCTION ext.le(ext.ci, ext.ci) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN ext.cmp($1, $2) <= 0; END';
CREATE FUNCTION ext.eq(ext.ci, ext.ci) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN ext.cmp($1, $2) = 0; END';
CREATE FUNCTION ext.ge(ext.ci, ext.ci) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN ext.cmp($1, $2) >= 0; END';
CREATE FUNCTION ext.gt(ext.ci, ext.ci) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS
  'BEGIN RETURN ext.cmp($1, $2) > 0; END';
CREATE OPERATOR ext.<  (LEFTARG = ext.ci, RIGHTARG = ext.ci, FUNCTION = ext.lt, COMMUTATOR = OPERATOR(ext.>));
CREATE OPERATOR ext.<= (LEFTARG = ext.ci, RIGHTARG = ext.ci, FUNCTION = ext.le, COMMUTATOR = OPERATOR(ext.>=));
CREATE OPERATOR ext.=  (LEFTARG = ext.ci, RIGHTARG = ext.ci, FUNCTION = ext.eq, COMMUTATOR = OPERATOR(ext.=));
CREATE OPERATOR ext.>= (LEFTARG = ext.ci, RIGHTARG = ext.ci, FUNCTION = ext.ge, COMMUTATOR = OPERATOR(ext.<=));
CREATE OPERATOR ext.>  (LEFTARG = ext.ci, RIGHTARG = ext.ci, FUNCTION = ext.gt, COMMUTATOR = OPERATOR(ext.<));
CREATE OPERATOR CLASS ext.ci_ops DEFAULT FOR TYPE ext.ci USING btree AS
  OPERATOR 1 ext.<, OPERATOR 2 ext.<=, OPERATOR 3 ext.=, OPERATOR 4 ext.>=, OPERATOR 5 ext.>,
  FUNCTION 1 ext.cmp(ext.ci, ext.ci);
GRANT USAGE ON SCHEMA ext TO PUBLIC;
"""

NUMBERS = ("-3", "-1", "0", "1", "2", "9", "10", "100", "127")
WORDS = ("", "a", "A", "B", "b", "ä", "Z", "zz", "a b", "a'b", "tab\t", "back\\", "\\N", "new\nline", "数据", "🌊")
MOODS: LiteralString = "CREATE TYPE mood AS ENUM ('z', 'b', 'a', 'M', 'it''s', 'm n'); "
VALUES: dict[str, tuple[LiteralString, LiteralString, tuple[str, ...]]] = {  # what to create before, type, values
    "int2": ("", "int2", (*NUMBERS, "-32768", "32767")),
    "int4": ("", "int", (*NUMBERS, "-2147483648", "2147483647")),
    "int8": ("", "int8", (*NUMBERS, "-9223372036854775808", "9223372036854775807")),
    "text": ("", "text", WORDS),
    "text in C": ("", 'text COLLATE "C"', WORDS),
    "varchar": ("", "varchar(10)", WORDS),
    "char": ("", "char(10)", ("", "a", "A", "ab", "a b", "b", "\\", "'")),
    "name": ("", "name", WORDS),
    "byte": ("", '"char"', ("a", "b", "A", " ", "\\", "'")),
    "uuid": ("", "uuid", tuple(f"{n:08x}-0000-4000-8000-{2**40 - n:012x}" for n in (0, 1, 255, 2**31, 2**32 - 1))),
    "numeric": ("", "numeric", ("NaN", "Infinity", "-Infinity", "0", "1.10", "1e50", "-5.000", "0.1", "1e-40")),
    "numeric(9,2)": ("", "numeric(9,2)", ("NaN", "0", "1.10", "-5.00", "1234567.89")),
    "float8": ("", "float8", ("NaN", "Infinity", "-Infinity", "0.1", "0.30000000000000004", "1e300", "5e-324")),
    "float4": ("", "float4", ("NaN", "Infinity", "-Infinity", "0.1", "1.1754944e-38", "3.4028235e38")),
    "bool": ("", "bool", ("t", "f")),
    "date": ("", "date", ("infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "2024-02-29")),
    "time": ("", "time", ("00:00", "24:00:00", "12:34:56.789012")),
    "timestamp": (
        "",
        "timestamp",
        ("infinity", "-infinity", "0044-03-15 12:00 BC", "294276-12-31 23:59:59.999999", "2024-01-31 00:00:00.000001"),
    ),
    "timestamptz": ("", "timestamptz(3)", ("infinity", "-infinity", "2024-01-31 12:00+05:30", "0001-01-01 00:00 BC")),
    "interval": ("", "interval", ("-1 day", "1 second", "1 mon -3 days 04:05:06.7", "178000000 years", "0")),
    "bytea": ("", "bytea", ("", "\\x00", "\\x5c", "\\xff", "\\x00ff", "\\x27")),
    "enum": (MOODS, "mood", ("z", "b", "a", "M", "it's", "m n")),
    "bit": ("", "bit(3)", ("000", "001", "101", "111")),
    "varbit": ("", "varbit(9)", ("", "0", "1", "101010101")),
    "inet": ("", "inet", ("10.0.0.1", "10.0.0.0/8", "::1", "fe80::/10")),
    "cidr": ("", "cidr", ("10.0.0.0/8", "10.0.0.0/16", "::/0")),
    "int array": ("", "int[]", ("{}", "{1}", "{1,2}", "{NULL}", "{{1},{2}}", "[0:1]={7,8}")),
    "text array": ("", "text[]", ("{}", '{"a,b"}', '{"\\"q\\""}', "{b}", '{"back\\\\slash"}', "{NULL}")),
    "enum array": (MOODS, "mood[]", ("{z,a}", "{z}", '{"it\'s"}', "{a}")),
    "range": ("", "int4range", ("empty", "[1,5)", "(,)", "[2,3)")),
    "jsonb": ("", "jsonb", ("null", "1", '"a"', '{"k": "v\\n"}', "[]")),
    "row": ("CREATE TYPE pair AS (a int, b text); ", "pair", ("(1,x)", '(1,"a b")', '(0,"")', "(2,)")),
    "domain": (
        "CREATE DOMAIN short AS varchar(20) CHECK (length(VALUE) < 15); "
        "CREATE DOMAIN shorter AS short CHECK (VALUE <> 'x'); ",
        "shorter",
        WORDS,
    ),
    "domain of an enum": (MOODS + "CREATE DOMAIN kind AS mood; ", "kind", ("z", "b", "a", "M")),
    "domain of an array": ("CREATE DOMAIN points AS int[]; ", "points", ("{}", "{3}", "{1,2}")),
    "an extension's": ("", "ext.ci", ("B", "a", "Z", "y", "C c", "d'", "e\\")),
}


@dataclass(frozen=True)
class Shape:
    """A table `things` with rows; `order` is its index's."""

    statements: LiteralString
    order: LiteralString
    table: str = "things"
    follows_index: bool = True  # is to be read without sorting


COPIES: LiteralString = "INSERT INTO things SELECT chr(97 + i / 5), i % 5, 'v' || i FROM generate_series(0, 24) i; "
WORDS_TABLE: LiteralString = """
CREATE TABLE things (v int, k text NOT NULL);
INSERT INTO things SELECT 1, w FROM unnest(ARRAY['a', 'A', 'b', 'B', '', 'ä', '-a', 'a-', 'aa', 'AA', 'é', 'Z']) w;
"""
BY_INDEX: LiteralString = "ALTER TABLE things REPLICA IDENTITY USING INDEX by_k"
SHAPES = {
    "two columns": Shape("CREATE TABLE things (a text, b int, v text, PRIMARY KEY (a, b)); " + COPIES, "a, b"),
    "two columns, the later one first": Shape(
        "CREATE TABLE things (a text, b int, v text, PRIMARY KEY (b, a)); " + COPIES, "b, a"
    ),
    "three columns": Shape(
        """CREATE TABLE things (a uuid, b timestamptz, c text, v int, PRIMARY KEY (a, b, c));
        INSERT INTO things SELECT ('00000000-0000-0000-0000-00000000000' || i / 8)::uuid,
          CASE i / 4 % 2 WHEN 0 THEN 'infinity' ELSE '2024-01-01'::timestamptz END, 'c' || i % 4, i
          FROM generate_series(0, 23) i""",
        "a, b, c",
    ),
    "an extension's column before another": Shape(
        "CREATE TABLE things (a ext.ci, b int, v text, PRIMARY KEY (a, b)); " + COPIES, "a USING OPERATOR(ext.<), b"
    ),
    "an extension's column behind two others": Shape(
        """CREATE TABLE things (a text, b int, c ext.ci, PRIMARY KEY (a, b, c));
        INSERT INTO things SELECT chr(97 + i / 12), i / 4 % 3, chr(65 + i % 4 + 32 * (i % 2))
          FROM generate_series(0, 35) i""",
        "a, b, c USING OPERATOR(ext.<)",
    ),
    "an index of another collation": Shape(
        WORDS_TABLE + 'CREATE UNIQUE INDEX by_k ON things (k COLLATE "C"); ' + BY_INDEX, 'k COLLATE "C"'
    ),
    "an index of another operator class": Shape(
        WORDS_TABLE + "CREATE UNIQUE INDEX by_k ON things (k text_pattern_ops); " + BY_INDEX, "k USING ~<~"
    ),
    "an index that falls": Shape(
        WORDS_TABLE + "CREATE UNIQUE INDEX by_k ON things (k DESC) INCLUDE (v); " + BY_INDEX, "k"
    ),
    "a full replica identity": Shape(
        "CREATE TABLE things (id int PRIMARY KEY, v text); INSERT INTO things SELECT i, 'x' "
        "FROM generate_series(1, 20) i; ALTER TABLE things REPLICA IDENTITY FULL",
        "id",
    ),
    "a dropped column and a generated one": Shape(
        """CREATE TABLE things (gone int, id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED);
        ALTER TABLE things DROP COLUMN gone; INSERT INTO things (id, v) SELECT i, 'x' FROM generate_series(1, 9) i;""",
        "id",
    ),
    "partitions": Shape(
        """CREATE TABLE things (region text, id int, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
        CREATE TABLE things_a PARTITION OF things FOR VALUES IN ('a', 'b');
        CREATE TABLE things_c (v text, id int NOT NULL, region text NOT NULL);
        ALTER TABLE things ATTACH PARTITION things_c FOR VALUES IN ('c') ;
        CREATE TABLE things_rest PARTITION OF things DEFAULT;
        INSERT INTO things SELECT chr(97 + i % 5), i, 'v' FROM generate_series(0, 24) i""",
        "id, region",
    ),
    "children": Shape(
        """CREATE TABLE things (id int PRIMARY KEY, v text); CREATE TABLE child (LIKE things) INHERITS (things);
        INSERT INTO things SELECT i, 'mine' FROM generate_series(1, 9) i; INSERT INTO child VALUES (3, 'not mine')""",
        "id",
    ),
    "names that need quotes": Shape(
        """CREATE TABLE "T ""q"" ä%s {}" ("Id; --" int, "order" text, "数据" text, PRIMARY KEY ("order", "Id; --"));
        INSERT INTO "T ""q"" ä%s {}" SELECT i, chr(97 + i / 3), 'v' FROM generate_series(1, 12) i""",
        '"order", "Id; --"',
        'T "q" ä%s {}',
    ),
}
TEMPORAL = Shape(
    """CREATE TABLE things (k int4range, during daterange, v int, PRIMARY KEY (k, during WITHOUT OVERLAPS));
    INSERT INTO things SELECT int4range(i / 4, i / 4 + 1), daterange('2024-01-01'::date + i, '2024-01-02'::date + i), i
      FROM generate_series(0, 15) i""",
    "k, during",
    follows_index=False,
)


@pytest.fixture(scope="module", params=["postgres", "postgres16"])
def database(request: pytest.FixtureRequest) -> Iterator[Source]:
    server: PostgresServer = request.getfixturevalue(request.param)
    with new_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        made = Source(server, dsn, connection)
        made.execute("SET timezone = 'UTC'")
        with made.superuser() as superuser:
            superuser.execute(FOREIGN_TYPE)
        yield made


@pytest.fixture
def source(database: Source) -> Source:
    database.execute("DROP PUBLICATION IF EXISTS watershed; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return database


@pytest.mark.parametrize("name", VALUES)
def test_a_key_of_one_column(source: Source, name: str) -> None:
    before, type_, values = VALUES[name]
    source.execute(sql.SQL("{}CREATE TABLE things (v text, k {} PRIMARY KEY)").format(sql.SQL(before), sql.SQL(type_)))
    with source.connection.cursor() as cursor:
        insert = sql.SQL("INSERT INTO things VALUES ('v', {})")
        for value in values:
            cursor.execute(insert.format(sql.Literal(value)))
    assert_each_row_once(source, Shape("", "k USING OPERATOR(ext.<)" if type_ == "ext.ci" else "k"))


@pytest.mark.parametrize("name", SHAPES)
def test_keys_of_other_shapes(source: Source, name: str) -> None:
    source.execute(SHAPES[name].statements)
    assert_each_row_once(source, SHAPES[name])


def test_a_temporal_key_has_no_btree(source: Source) -> None:
    if source.connection.info.server_version < 180_000:
        with pytest.raises(psycopg.errors.SyntaxError):
            source.execute(TEMPORAL.statements)
        return
    source.execute(TEMPORAL.statements)
    assert_each_row_once(source, TEMPORAL)


def test_a_column_whose_collation_ignores_what_its_index_tells_apart(source: Source) -> None:
    try:
        source.execute("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU, so it has no such collation")
    source.execute(
        """CREATE TABLE things (v int, k text COLLATE loose NOT NULL);
        INSERT INTO things SELECT 1, w FROM unnest(ARRAY['a', 'A', 'á', 'b', 'B', 'c']) w;
        CREATE UNIQUE INDEX by_k ON things (k COLLATE "C"); """
        + BY_INDEX
    )
    assert_each_row_once(source, Shape("", 'k COLLATE "C"'))


def assert_each_row_once(source: Source, fingerprint: Shape) -> None:
    """In chunks of few rows, in ranges, and by the index."""
    table = TableId("public", fingerprint.table)
    source.publish(fingerprint.table)
    schema = source.schema(table)
    expected = rows(source, table, [column.name for column in schema.columns], fingerprint.order)
    assert len(expected) > 1
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        for rows_max in (1, 2, 3, 5, 7):
            chunks = reader.chunks(schema, begun, rows_max=rows_max)
            assert lines_of(chunks) == expected
            assert [read.last is None for read in chunks] == [not read.lines for read in chunks]
        lasts = [read.last for read in reader.chunks(schema, begun, rows_max=1) if read.last is not None]
        middle = lasts[len(lasts) // 2]
        lower = reader.chunks(schema, begun, rows_max=3, up_to=middle)
        upper = reader.chunks(schema, begun, rows_max=3, after=middle)
        assert len(lines_of(lower)) == len(lasts) // 2 + 1
        assert lines_of(lower) + lines_of(upper) == expected
        assert_what_is_gone_is_found(source, reader, begun, schema, expected, middle)
    if fingerprint.follows_index:
        plan = plan_of(source, table, middle)
        assert not re.search(r"-> +(Incremental )?Sort", plan), plan
        assert "Index Cond" in plan, plan


def assert_what_is_gone_is_found(
    source: Source, reader: Asked, begun: TableDescribed, schema: TableSchema, lines: list[bytes], middle: Key
) -> None:
    """By the record keys that these rows had. `lines` are in the order of the index."""
    encoder = TableEncoder(schema, relation_of(schema), EnvelopeContext("shop", "shop", 1, "0"))
    encoder.start_chunk(1, 1)
    keys = [encoder.copy_row(line, 1, 0, 1, 1)[0] for line in lines]
    lower = len(lines) // 2 + 1
    junk = (b"", b'{"other":1}')
    assert reader.absent(schema, begun, (*keys, *junk)) == ()
    only = sql.SQL("" if is_partitioned(source, schema.table) else "ONLY")
    source.execute(sql.SQL("DELETE FROM {} {}").format(only, sql.Identifier(*schema.table)))
    assert reader.absent(schema, begun, (*junk, *keys)) == tuple(keys)
    assert reader.absent(schema, begun, keys, up_to=middle) == tuple(keys[:lower])
    assert reader.absent(schema, begun, keys, after=middle) == tuple(keys[lower:])


def test_another_spelling_of_the_key_and_no_value_of_its_type(source: Source) -> None:
    """1.0 is the row's key for the index, but not in the topic; what PostgreSQL can't read is nobody's business."""
    source.execute("CREATE TABLE things (k numeric PRIMARY KEY); INSERT INTO things VALUES (1.0), (2)")
    source.publish("things")
    schema = source.schema(TableId("public", "things"))
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        keys = [b'{"k":"%s"}' % text for text in (b"1.0", b"1.00", b"x", b"2", b"", b"3", b"1e1", b"0x")]
        assert reader.absent(schema, begun, keys) == (b'{"k":"1.00"}', b'{"k":"3"}')


def test_rows_outside_the_publication_are_not_there(source: Source) -> None:
    source.execute("CREATE TABLE things (k int PRIMARY KEY); INSERT INTO things VALUES (1), (-1)")
    source.execute("CREATE PUBLICATION watershed FOR TABLE things WHERE (k > 0)")
    schema = source.schema(TableId("public", "things"))
    with source.reader(schema) as reader:
        keys = (b'{"k":1}', b'{"k":-1}')
        assert reader.absent(schema, reader.begin(schema), keys) == (b'{"k":-1}',)


def test_the_order_of_the_keys_index_is_told(source: Source) -> None:
    source.execute(WORDS_TABLE + 'CREATE UNIQUE INDEX by_k ON things (k COLLATE "C"); ' + BY_INDEX)
    source.publish("things")
    schema = source.schema(TableId("public", "things"))
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        assert reader.begin(schema).order == begun.order
        source.execute('DROP INDEX by_k; CREATE UNIQUE INDEX by_k ON things (k COLLATE "POSIX"); ' + BY_INDEX)
        failure = reader.fail(chunk(schema, begun.fingerprint))
        assert not failure.is_permanent
        assert reader.begin(schema).order != begun.order


def rows(source: Source, table: TableId, columns: list[str], order: LiteralString) -> list[bytes]:
    """As PostgreSQL prints them, in this order."""
    statement = sql.SQL("COPY (SELECT {} FROM {} {} ORDER BY {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL("" if is_partitioned(source, table) else "ONLY"),
        sql.Identifier(*table),
        sql.SQL(order),
    )
    with source.connection.cursor() as cursor, cursor.copy(statement) as copy:
        return [bytes(line).removesuffix(b"\n") for line in copy]


def is_partitioned(source: Source, table: TableId) -> bool:
    return source.execute("SELECT relkind = 'p' FROM pg_class WHERE relname = %s", table.name) == [(True,)]


def plan_of(source: Source, table: TableId, after: Key) -> str:
    """How the server reads a chunk that goes on above a key, as the reader has it read."""
    schema = source.schema(table)
    with psycopg.connect(source.dsn, autocommit=True, options="-c search_path=pg_catalog") as connection:
        seen = describe_for_chunks(connection, schema, source.publication(table))[1]
        statement = chunk_statement(seen, schema.columns, 3, after=after)
        query = statement.as_string(connection).removeprefix("COPY (").removesuffix(") TO STDOUT")
        connection.execute("SET LOCAL enable_sort = off")
        explained = connection.execute(sql.SQL("EXPLAIN (COSTS OFF) {}").format(sql.SQL(query)))
        return "\n".join(line for (line,) in explained.fetchall())

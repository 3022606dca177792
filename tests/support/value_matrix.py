"""Every kind of type that a column can have, each with its edge values, as SQL. The server says what they print as."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect
from tests.conftest import PostgresServer, new_database, superuser_dsn_of
from watershed.devstack.postgres import is_installed

TYPES: Final = r"""
    CREATE TYPE mood AS ENUM ('fine', 'so "so"', 'null', 'a,b', 'ünï {x} \ ''');
    CREATE TYPE "od""d , typë" AS ENUM ('x');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN small_positive AS positive CHECK (VALUE < 10);
    CREATE DOMAIN cents AS numeric(12,2);
    CREATE DOMAIN names AS text[];
    CREATE DOMAIN moody AS mood;
    CREATE DOMAIN moods AS mood[];
    CREATE DOMAIN positives AS positive[];
    CREATE DOMAIN paired AS pair;
    CREATE DOMAIN boxy AS box;
    CREATE DOMAIN seen_at AS timestamptz;
    CREATE TYPE nest AS (p pair, xs text[], m mood, d positive, at timestamptz, raw bytea);
    CREATE TYPE floats AS RANGE (subtype = float8);
    CREATE TYPE moodrange AS RANGE (subtype = mood);
    CREATE SCHEMA "Öther s";
    CREATE TYPE "Öther s".mood AS ENUM ('elsewhere');
    CREATE TABLE rowed (a int, b "Öther s".mood);
"""


@dataclass(frozen=True)
class Typed:
    """A column of the matrix. `form`: which built-in type's values a record's must look like, where that is not
    plainly the type's own; `text` is PostgreSQL's text."""

    type: str
    values: tuple[str, ...]  # SQL expressions; NULL follows the last
    form: str = ""
    extension: str = ""  # that brings the type


def typed(type_: str, *values: str, form: str = "", extension: str = "") -> Typed:
    return Typed(type_, values, form or type_, extension)


# fmt: off
MATRIX: Final[tuple[Typed, ...]] = (
    typed("bigint", "0", "-9223372036854775808", "9223372036854775807", "9007199254740993"),
    typed("integer", "0", "-2147483648", "2147483647"),
    typed("smallint", "-32768", "32767"),
    typed("oid", "0", "4294967295"),
    typed("text", "''", r"E'quote \" back \\ tab \t newline \n cr \r \x01\x1f\x7f'", "'Zoë 😀 \u2028\ufeff'", r"'\N'",
          r"'\.'", "'__debezium_unavailable_value'", "repeat('x', 100000)"),
    typed("varchar", "'NULL'", "'a,b'", "repeat('long ', 20000)"),
    typed("varchar(20)", "'t'", r"E'\b\f\v'"),
    typed("char(6)", "'ab'", "''", "'äöü'"),
    typed("bpchar", "'ab  '"),
    typed("name", "'a_name'", "repeat('ä', 31)"),
    typed('"char"', "'x'", r"'\377'", "''", r"'\n'"),
    typed("numeric(12,2)", "0", "-9999999999.99", "1.1"),
    typed("numeric", "'NaN'", "'Infinity'", "'-Infinity'", "repeat('9', 100)::numeric", "1e-100", "1.10", "1e131071",
          "(repeat('7', 100) || '.' || repeat('3', 100))::numeric", "-0.0"),
    typed("numeric(5,-2)", "-12345", "'NaN'"),
    typed("numeric(3,5)", "0.00999"),
    typed("money", "-1234.5", "'-92233720368547758.08'", "'92233720368547758.07'"),
    typed("double precision", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0.1", "1e300", "5e-324", "1e15",
          "1.7976931348623157e308"),
    typed("real", "'NaN'", "'-Infinity'", "3.4028235e38", "1e-45", "0.1", "16777217", "'-0'"),
    typed("boolean", "true", "false"),
    typed("date", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'2024-02-29'", "'0001-01-01'"),
    typed("time", "'24:00:00'", "'00:00:00'", "'12:34:56.000001'"),
    typed("time(3)", "'12:34:56.789'"),
    typed("timetz", "'12:34:56.1+05:30'", "'24:00:00-15:59:59'", "'00:00:00+15:59'"),
    typed("timestamp", "'infinity'", "'-infinity'", "'0044-03-15 12:00:00.5 BC'", "'294276-12-31 23:59:59.999999'",
          "'9999-12-31 23:59:59.999999'", "'2024-01-31 12:00'", "'2024-01-31 12:00:00.10'", "'0001-01-01'",
          "'4714-11-24 00:00:00 BC'"),
    typed("timestamp(0)", "'2024-01-31 12:00:00'", form="timestamp"),
    typed("timestamptz", "'infinity'", "'-infinity'", "'4713-01-02 00:00:00+00 BC'", "'10000-01-01 00:00:00+00'",
          "'2024-01-31 12:00:00.123+05:30'", "'1900-01-01 00:00:00+00'", "'2024-06-01 00:00:00.000001+02'"),
    typed("timestamptz(3)", "'2024-01-31 12:00:00.120+00'", form="timestamptz"),
    typed("interval", "'1 year -2 mons 3 days -04:05:06.78'", "'0'", "'-178000000 years'", "'-0.000001 seconds'"),
    typed("interval day to second(3)", "'1 day 00:00:01.5'"),
    typed("bytea", r"'\x'", r"'\x00ff5c0a'", "decode(repeat('ab', 3000), 'hex')"),
    typed("bit(1)", "B'0'", "B'1'"),
    typed("bit(11)", "B'10000000001'"),
    typed("varbit", "B'101'", "B''"),
    typed("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"),
    typed("jsonb", """'{"b": [1.10, null, "x\\"y\\n"], "a": "Zoë"}'""", "'null'", "'1e400'", r"""'"\u2028"'"""),
    typed("json", r"""'{"a": "\u0000", "a" : 1}'""", """E'{\\n"a":\\t1}'""", r"""'"\ud83d\ude00\u0000"'"""),
    typed("jsonpath", "'$.a[*] ? (@ > 1)'"),
    typed("inet", "'192.168.0.1/24'", "'::1'", "'10.0.0.1'"),
    typed("cidr", "'192.168.0.0/16'", "'2001:db8::/32'"),
    typed("macaddr", "'08:00:2b:01:02:03'"),
    typed("macaddr8", "'08:00:2b:ff:fe:01:02:03'"),
    typed("point", "'(1.5,-2)'", "'(NaN,Infinity)'", "'(-0,1e300)'"),
    typed("line", "'{1,-1,0}'"),
    typed("lseg", "'[(0,0),(1,1)]'"),
    typed("box", "'(1,1),(0,0)'"),
    typed("path", "'((0,0),(1,1),(2,0))'", "'[(0,0),(1,1)]'"),
    typed("polygon", "'((0,0),(1,1),(2,0))'"),
    typed("circle", "'<(1,2),3.5>'"),
    typed("tsvector", "'a:1 ''b c'':2A'", "''"),
    typed("tsquery", "'''a b'' & !c <2> d:*AB'", "''"),
    typed("pg_lsn", "'FFFFFFFF/FFFFFFFF'", "'0/0'"),
    typed("xid", "'4294967295'"),
    typed("xid8", "'18446744073709551615'", "'0'"),
    typed("cid", "'4294967295'"),
    typed("tid", "'(4294967295,65535)'"),
    typed("pg_snapshot", "'10:20:10,14,15'"),
    typed("txid_snapshot", "'10:20:10,14,15'"),
    typed("regclass", "'pg_class'", "'rowed'", "0"),
    typed("regtype", "'timestamp with time zone'", "'mood'"),
    typed("regproc", "'pg_catalog.now'"),
    typed("regprocedure", "'pg_catalog.abs(int)'"),
    typed("regrole", "'pg_monitor'"),
    typed("regnamespace", "'public'", '\'"Öther s"\''),
    typed("refcursor", "'c'"),
    typed("aclitem", "'=r/pg_monitor'"),
    typed("int2vector", "'1 2 3'", "''"),
    typed("oidvector", "'1 4294967295'"),
    typed("int4range", "'[1,5)'", "'empty'", "'(,)'"),
    typed("int8range", "'[-9223372036854775808,]'"),
    typed("numrange", "'[1.10,NaN]'", "'(-Infinity,0]'"),
    typed("daterange", "'[-infinity,infinity]'", "'[0044-03-15 BC,2024-01-31)'"),
    typed("tsrange", """'["2024-01-01 00:00",)'"""),
    typed("tstzrange", "'[2024-01-01 00:00+00,)'", "'(,infinity]'"),
    typed("floats", "'[-0,NaN]'"),
    typed("moodrange", """'[fine,"a,b"]'"""),
    typed("int4multirange", "'{[1,3),[5,9)}'", "'{}'"),
    typed("tstzmultirange", "'{[2024-01-01 00:00+00,2024-01-02 00:00+00)}'"),
    typed("nummultirange", "'{[1.0,2.00]}'"),
    typed("mood", "'fine'", "'so \"so\"'", "'null'", "'a,b'", r"'ünï {x} \ '''"),
    typed('"od""d , typë"', "'x'"),
    typed('"Öther s".mood', "'elsewhere'"),
    typed("pair", "ROW(1, 'a \"b\"')", "ROW(NULL, NULL)", "ROW(NULL, '')"),
    typed("nest", "ROW(ROW(1,'x'), ARRAY['a',NULL,'\"'], 'so \"so\"', 3, '2024-01-31 12:00+00', '\\x00ff')::nest"),
    typed("rowed", "ROW(1, 'elsewhere')::rowed"),
    typed("positive", "17", form="integer"),
    typed("small_positive", "7", form="integer"),
    typed("cents", "1.1"),
    typed("moody", "'so \"so\"'"),
    typed("paired", "ROW(1, 'a')"),
    typed("seen_at", "'2024-01-31 12:00+02'", form="timestamptz"),
    typed("text[]", "'{}'",
          r"""ARRAY['', 'NULL', 'null', 'a b', 'say "hi"', E'back\\slash', '{}', ',', E'\n', NULL, 'Zoë', ';']""",
          "ARRAY[['a', NULL], ['\"', 'd']]", "'[-1:0]={a,b}'", "ARRAY[[['x']]]", "ARRAY[repeat('\"', 5000)]",
          "ARRAY[[[[[['six', 'd\"eep']]]]]]", "'[1:1][2:2]={{b}}'"),
    typed("integer[]", "'{1,-2,NULL}'", "'{{1,2},{3,4}}'", "'[0:1][2:3]={{1,2},{3,4}}'", "'{}'"),
    typed("smallint[]", "'{-32768,NULL}'"),
    typed("bigint[]", "'{-9223372036854775808,9223372036854775807}'"),
    typed("oid[]", "'{4294967295}'"),
    typed("numeric(10,2)[]", "'{1.10,NaN,NULL,-0.5}'", form="numeric[]"),
    typed("double precision[]", "'{0.1,NaN,1e300,NULL,-0}'"),
    typed("real[]", "'{0.1,-Infinity,-0}'"),
    typed("boolean[]", "'{t,f,NULL}'"),
    typed("timestamptz[]", "ARRAY['2024-01-31 12:00:00.5+00', 'infinity', NULL, '0044-03-15 BC']::timestamptz[]"),
    typed("timestamp[]", "ARRAY['2024-01-31 12:00:00.5', '-infinity']::timestamp[]"),
    typed("date[]", "'{2024-01-31,infinity}'"),
    typed("time[]", "'{24:00:00,NULL}'"),
    typed("timetz[]", "'{12:34:56.1+05:30}'"),
    typed("interval[]", "ARRAY['1 day 2 hours', NULL]::interval[]"),
    typed("bytea[]", r"""ARRAY['\x00ff'::bytea, '\x', NULL]"""),
    typed("mood[]", r"""ARRAY['fine', 'so "so"', 'null', NULL, 'a,b', 'ünï {x} \ ''']::mood[]"""),
    typed('"Öther s".mood[]', "'{elsewhere}'"),
    typed("pair[]", "ARRAY[ROW(1,'a \"b\"'), NULL, ROW(NULL,NULL)]::pair[]"),
    typed("nest[]", "ARRAY[ROW(NULL, ARRAY['a,b'], NULL, 1, NULL, NULL)]::nest[]"),
    typed("rowed[]", "ARRAY[ROW(1, 'elsewhere')]::rowed[]"),
    typed("jsonb[]", """ARRAY['{"a": "b c"}'::jsonb, 'null', NULL]"""),
    typed("xid8[]", "'{18446744073709551615}'"),
    typed("box[]", "'{(1,1),(0,0);(2,2),(1,1)}'"),
    typed("boxy[]", "'{(1,1),(0,0);(2,2),(1,1)}'"),
    typed("point[]", "ARRAY['(1,2)'::point]"),
    typed("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"),
    typed("inet[]", "'{10.0.0.1,::/0}'"),
    typed("money[]", "ARRAY['-1234.5'::money, NULL]"),
    typed("bit(3)[]", "ARRAY[B'101', NULL]"),
    typed("varchar(3)[]", "'{abc,NULL}'"),
    typed("char(3)[]", "'{a}'"),
    typed("int2vector[]", "ARRAY['1 2'::int2vector]"),
    typed("int4range[]", "ARRAY['[1,5)', 'empty', NULL]::int4range[]"),
    typed("tstzmultirange[]", "ARRAY['{[2024-01-01 00:00+00,)}']::tstzmultirange[]"),
    typed("tsvector[]", "ARRAY['a:1 ''b c'':2'::tsvector]"),
    typed("positive[]", "'{17,NULL}'", "'[0:0]={1}'", form="integer[]"),
    typed("seen_at[]", "ARRAY['2024-01-31 12:00+02', NULL, 'infinity']::seen_at[]", form="timestamptz[]"),
    typed("moody[]", """ARRAY['so "so"', NULL]::moody[]"""),
    typed("names", "'{a,NULL,\"b c\"}'", "'{{a},{b}}'", form="text[]"),
    typed("moods", """ARRAY['so "so"', NULL, 'fine']::mood[]""", form="mood[]"),
    typed("positives", "'{1,2,NULL}'", form="integer[]"),
    typed("names[]", r"""'{"{a,\"b c\"}",NULL}'""", form="text[]"),
    typed("hstore", """'a=>1, "b c"=>NULL, d=>"\\"q\\""'""", "''", extension="hstore"),
    typed("hstore[]", """ARRAY['a=>1'::hstore, NULL]""", extension="hstore"),
    typed("citext", "'MiXed'", extension="citext"),
    typed("ltree", "'Top.Science'", extension="ltree"),
    typed("cube", "'(1,2),(3,4)'", extension="cube"),
    typed("isbn", "'9780393040029'", extension="isn"),
    typed("seg", "'1.0 .. 2'", extension="seg"),
    typed("vector(3)", "'[1,2.5,-3]'", extension="vector"),
    typed("vector(3)[]", "ARRAY['[1,2,3]'::vector, NULL]", extension="vector"),
    typed("halfvec(2)", "'[1,2]'", extension="vector"),
    typed("sparsevec(5)", "'{1:1,3:2}/5'", extension="vector"),
)
# fmt: on

# Names that need quoting everywhere: in SQL, in JSON, in what the codec generates.
ODD_NAMES: Final = ('od"d {n}\\ame', "Größe", "a\tb\nc", "select", "'", "{v}", "😀")


def columns(extensions: frozenset[str]) -> Iterator[tuple[str, Typed]]:
    """(name, column) of what a server with these extensions has."""
    known = [column for column in MATRIX if column.extension in extensions | {""}]
    for i, column in enumerate(known):
        yield ODD_NAMES[i] if i < len(ODD_NAMES) else f"c{i}", column


# 15 brings contrib's extensions, which the others lack; only where the system has it.
SERVERS: Final = ("postgres", "postgres16", *(f"postgres{version}" for version in (15, 17) if is_installed(version)))


@contextmanager
def database(server: PostgresServer) -> Iterator[tuple[SourceConfig, psycopg.Connection, list[tuple[str, Typed]]]]:
    """With the table of all types, empty; and a connection of capture's that looks in schema public."""
    with new_database(server) as dsn:
        config = SourceConfig.model_validate({"dsn": dsn, "tables": ("public.things",)})
        with (
            connect(config) as connection,
            psycopg.connect(superuser_dsn_of(server, dsn), autocommit=True) as superuser,
        ):
            connection.execute("SET search_path = public")
            yield config, connection, create(connection, superuser)


def create(connection: psycopg.Connection, superuser: psycopg.Connection) -> list[tuple[str, Typed]]:
    """Table `things` with a row for each place in the longest list. Returns its columns after `id`."""
    available = {name for (name,) in superuser.execute("SELECT name FROM pg_available_extensions").fetchall()}
    extensions = frozenset(column.extension for column in MATRIX) & available
    for extension in sorted(extensions):
        superuser.execute(sql.SQL("CREATE EXTENSION {} SCHEMA public").format(sql.Identifier(extension)))
    connection.execute(TYPES)
    made = list(columns(extensions))
    definitions = sql.SQL(", ").join(sql.SQL("{} " + c.type).format(sql.Identifier(name)) for name, c in made)
    connection.execute(sql.SQL("CREATE TABLE things (id int PRIMARY KEY, {})").format(definitions))
    return made


def insert(connection: psycopg.Connection, made: list[tuple[str, Typed]]) -> int:
    """The rows; the last is all NULL. Returns how many."""
    count = max(len(column.values) for _, column in made) + 1
    with connection.transaction():
        for i in range(count):
            row = [column.values[i] if i < len(column.values) else "NULL" for _, column in made]
            connection.execute(f"INSERT INTO things VALUES ({i}, {', '.join(row)})".encode())
    return count

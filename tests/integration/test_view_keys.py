"""The text of a key is PostgreSQL's own, whether it was found from all rows or from a changed row; and it finds its
row."""

from contextlib import closing
from typing import Final

import psycopg
import pytest
from pydantic import SecretStr

from cdc.config.stores import SqlConfig
from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.postgres.connection import pinned_options
from tests.conformance.stores import url_of
from tests.support.user_queries import PlainBase, UserTable
from watershed.views.maintainer import RowEncoder, define

# A type, and values of it.
VALUES: Final = {
    'int2': [
        '0', '-32768', '32767',
    ],
    'int4': [
        '0', '-2147483648', '2147483647',
    ],
    'int8': [
        '0', '-9223372036854775808', '9223372036854775807', '9007199254740993',
    ],
    'oid': [
        '0', '4294967295',
    ],
    'bool': [
        't', 'f',
    ],
    'text': [
        '', ' ', 'a', 'a ', 'Ü', 'U\u0308', '\u6f22\u5b57', '\U0001f469\u200d\U0001f469\u200d\U0001f467',
        '\u202eright', "'", '"', '\\', '\\x41', 'a\tb\nc\r', '\x01\x7f', 'null', 'NULL', '[1,2]', '{"a":1}', '%s',
        '{}', '$1', "x" * 700, 'a/b', 'a,b', '(a,b)', '1.0', 't', '\x85\u2028', '\ufeff',
    ],
    'varchar(5)': [
        '', 'abcde', 'ä ö',
    ],
    'char(5)': [
        '', 'a', 'ab cd', 'ü',
    ],
    '"char"': [
        'a', "'",
    ],
    'name': [
        'a', 'Ünïcode',
    ],
    'uuid': [
        '00000000-0000-0000-0000-000000000000', '123E4567-E89B-12D3-A456-426614174000',
    ],
    'date': [
        '2024-02-29', '0001-01-01', '9999-12-31', '0044-03-15 BC', 'infinity', '-infinity', '12345-01-01',
    ],
    'time': [
        '00:00:00', '23:59:59.999999', '24:00:00', '12:30:00.5',
    ],
    'time(0)': [
        '12:30:00.5',
    ],
    'timestamp': [
        '2024-01-31 12:00:00', '2024-01-31 12:00:00.123456', 'infinity', '-infinity', '0044-03-15 00:00:00 BC',
    ],
    'timestamp(0)': [
        '2024-01-31 12:00:00.5',
    ],
    'timestamptz': [
        '2024-01-31 12:00:00+05:30', '1900-01-01 00:00:00Z', 'infinity', '9999-12-31 23:59:59.999999Z',
    ],
    'numeric(12,2)': [
        '0', '1.5', '-1.50', '1', '9999999999.99', 'NaN',
    ],
    'numeric(5,0)': [
        '0', '12345', '-1',
    ],
    'numeric(20,10)': [
        '0', '0.1', '1e-10', '-1234567890.123',
    ],
    'bytea': [
        '', '\\x00', '\\xdeadbeef', '\\x5c27',
    ],
    'inet': [
        '10.0.0.1', '10.0.0.0/8', '::1', '2001:DB8::/32',
    ],
    'cidr': [
        '10.0.0.0/8', '10.1.2.3/32', '::/0',
    ],
    'macaddr': [
        '08:00:2b:01:02:03', '08002B010203',
    ],
    'bit(3)': [
        '101',
    ],
    'varbit': [
        '', '1', '0101',
    ],
}  # fmt: skip
# Expressions over columns of `t`, which has a row for each text above.
EXPRESSIONS: Final = [
    'v::varchar(3)', 'v::char(3)', 'upper(v)', 'lower(v)', 'initcap(v)', 'length(v)', 'octet_length(v)::int8',
    'md5(v)', "convert_to(v, 'UTF8')", "sha256(convert_to(v, 'UTF8'))", "encode(convert_to(v, 'UTF8'), 'hex')",
    'reverse(v)', 'left(v, 2)', 'right(v, 2)', 'substring(v from 2 for 2)', 'substr(v, 2)', 'trim(v)',
    "btrim(v, 'a')", 'ltrim(v)', "rtrim(v, ' b')", "replace(v, 'a', 'b')", "translate(v, 'ab', 'xy')", "v || '!'",
    "'<' || v || '>'", 'concat(v, n)', "concat_ws('-', v, n)", "format('%s:%s', n, v)", 'quote_literal(v)',
    'quote_ident(v)', "split_part(v, ',', 1)", "lpad(v, 4, '*')", 'rpad(v, 4)', 'repeat(v, 2)', 'ascii(v)',
    'chr(n + 65)', 'to_hex(n)', "position('a' in v)", "strpos(v, 'b')", "regexp_replace(v, '\\s+', '_', 'g')",
    "coalesce(nullif(v, ''), '-')", "v = 'a'", "v < 'b'", "v ~ '^a'", 'v IS NULL', "v LIKE '%a%'", "v IN ('a', 'Ü')",
    "starts_with(v, 'a')", "CASE WHEN n > 9 THEN 'many' ELSE v END", 'n % 3', 'mod(n, 3)', '-n', 'abs(-n)',
    'n / 2', 'n * 1.5::numeric(5,2)::int', '(n * 1.5)::numeric(8,3)', 'round(n * 1.25, 1)::numeric(8,1)',
    'n::numeric(10,4)', 'n::int8 * 4294967296', 'n::int2', 'n::bool', '(n > 3)::int', 'n::text', 'n::varchar',
    'n & 6', 'n | 8', 'n # 5', 'n << 3', 'n >> 1', '(n ^ 2)::int', 'sqrt(n)::numeric(8,4)', 'ceil(n / 2.0)::int',
    'floor(n / 3.0)::int', 'greatest(n, 5)', 'least(n, 5)', 'width_bucket(n, 0, 30, 4)', "DATE '2024-01-31' + n",
    "DATE '2024-01-31' - n", "DATE '2024-03-10' - (DATE '2024-01-01' + n)",
    "TIMESTAMP '2024-01-31 12:00:00' + n * interval '1 hour'", 'make_date(2024, 1 + n % 12, 1)',
    'make_time(n % 24, 0, 1.5)', 'to_timestamp(n * 86400.5)', "to_timestamp(n) AT TIME ZONE 'Asia/Kolkata'",
    "to_date('2024' || lpad(n::text, 3, '0'), 'YYYYDDD')",
    "date_trunc('week', TIMESTAMP '2024-01-31' + n * interval '1 day')",
    "date_bin('7 days', TIMESTAMP '2024-01-31' + n * interval '1 day', '2024-01-01')",
    "extract(isoyear FROM DATE '2024-12-25' + n)::int", 'to_char(DATE \'2024-12-25\' + n, \'IYYY-"W"IW\')',
    "to_char(n, 'FM000')", "to_char(n * 1.5, '990D00')", "to_char(DATE '2024-12-25' + n, 'FMDay, FMDDth FMMonth')",
    "('10.0.0.' || n)::inet", "host(('10.0.0.' || n)::inet)", 'md5(v)::uuid', "row_to_json(ROW(n)) ->> 'f1'",
    "(jsonb_build_object('a', v) ->> 'a')", "(to_jsonb(v) #>> '{}')", "array_to_string(ARRAY[v, n::text], '/')",
    "(ARRAY['x', 'y', 'z'])[1 + n % 3]", "cardinality(string_to_array(v, ','))",
]  # fmt: skip
REFUSED: Final = [
    "numeric",
    "float4",
    "float8",
    "interval",
    "jsonb",
    "money",
    "timetz",
    "int4range",
    "bpchar",
    "text[]",
]


def assert_exact(dsn: str, create: str, name: str, text: str, key: list[str]) -> int:
    """Keeps the view while all rows of table `t` are deleted and inserted; returns the number of keys."""
    config = SqlConfig.model_validate({"url": SecretStr(url_of(dsn))})
    target = {"type": "sql", "url": "postgresql://nowhere/x"}
    view = ViewConfig.model_validate({"base": "base", "sql": text, "key": key, "target": target})
    with (
        psycopg.connect(dsn, autocommit=True, options=pinned_options(search_path="public")) as connection,
        closing(PlainBase(config, "shop")) as base,
    ):
        connection.execute(f"CREATE TABLE IF NOT EXISTS t ({create})".encode())
        base.tables = {TableId("public", "t"): UserTable(TableId("public", "t"), {}, frozenset())}
        base.install()
        definition = define(name, view, base)
        encoder = RowEncoder(definition, base.described(definition))
        base.install_triggers(definition)
        for statement in ("CREATE TABLE r AS TABLE t", "DELETE FROM t", "INSERT INTO t TABLE r", "DROP TABLE r"):
            connection.execute(statement.encode())
        printed = ", ".join(f"format('%%s', v.\"{one}\")" for one in key)
        there = " AND ".join(f'v."{one}" IS NOT NULL' for one in key)
        cursor = connection.execute(f"SELECT {printed.replace('%%', '%')} FROM ({text}) v WHERE {there}".encode())
        wanted = {tuple(row) for row in cursor}
        while base.collect(definition, encoder.key_types):
            pass
        noted = base.keys(definition, 100_000)
        rows, failed = base.rows_of(definition, encoder.key_types, noted)
        found = {one: row for one, row in rows.items() if row is not None}
        assert (set(found), failed) == (wanted, {}), f"{text}: {set(found) ^ wanted}"
        assert {encoder.key_of(row) for row in found.values()} == wanted, f"{text}: keys of rows"
        filled = [encoder.key_of(row) for rows in base.all_rows(definition) for row in rows]
        assert (set(filled), len(filled)) == (wanted, len(wanted)), f"{text}: all rows"
        base.remove(name)
    return len(wanted)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_each_type_has_postgresqls_text(kind: str, fresh_database: str) -> None:
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (n int4 PRIMARY KEY, k {kind})".encode())
        for number, value in enumerate([*VALUES[kind], None]):
            connection.execute(f"INSERT INTO t VALUES (%s, (%s::text)::{kind})".encode(), (number, value))
    query = "SELECT k, count(*) AS many FROM t GROUP BY k"
    assert assert_exact(fresh_database, "", "one", query, ["k"]) > 0
    pair = 'SELECT n % 2 AS half, k AS "K ey", count(*) AS many FROM t GROUP BY 1, 2'
    assert assert_exact(fresh_database, "", "pair", pair, ["half", "K ey"]) > 0


def test_an_expression_has_postgresqls_text(fresh_database: str) -> None:
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n int4 PRIMARY KEY, v text)")
        for number, value in enumerate([*VALUES["text"], None]):
            connection.execute("INSERT INTO t VALUES (%s, %s)", (number, value))
    problems = []
    for number, expression in enumerate(EXPRESSIONS):
        query = f"SELECT {expression} AS k, count(*) AS many FROM t GROUP BY 1"
        try:
            assert_exact(fresh_database, "", f"e{number}", query, ["k"])
        except Exception as error:  # noqa: BLE001 - each expression is tested
            problems.append(f"{expression}: {type(error).__name__}: {error}"[:400])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_whose_equal_values_have_several_texts_is_refused(kind: str, fresh_database: str) -> None:
    with pytest.raises(ConfigError, match="can have different texts"):
        assert_exact(fresh_database, f"n int4, k {kind}", "one", "SELECT k, count(*) AS many FROM t GROUP BY k", ["k"])

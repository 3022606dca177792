"""Random rows of a real server, through stream and COPY into records, and back: the server itself compares."""

import json
from collections.abc import Iterator

import pytest

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect
from tests.support.decoding import Source, bytes_of_row

ROWS = 100_000
SEED = 0.20260131

# Characters that mean something to COPY, to JSON, to array literals or to UTF-8.
CHARACTERS = [
    1,
    8,
    9,
    10,
    11,
    13,
    34,
    39,
    44,
    47,
    78,
    85,
    92,
    95,
    97,
    110,
    123,
    125,
    127,
    233,
    8232,
    8364,
    65533,
    128512,
]
TEXT = (
    f"(SELECT string_agg(chr((ARRAY{CHARACTERS})[1 + floor(random() * {len(CHARACTERS)})::int]), '')"
    " FROM generate_series(1, {length}))"
)
SMALL, LARGE = TEXT.format(length="id % 7"), TEXT.format(length="id % 23")

# type, a random value (SQL, `id` in scope), and what makes the value again of the record's field {0}: of its text, or
# of its JSON where it is an array. Few columns, for many rows; the value matrix has all types.
COLUMNS: dict[str, tuple[str, str, str]] = {
    "n": (
        "numeric",
        "CASE WHEN id % 97 = 0 THEN 'NaN' ELSE"
        " round((random() - 0.5)::numeric * power(10::numeric, floor(random() * 60)::int), floor(random() * 25)::int)"
        " END",
        "{0}::numeric",
    ),
    "f": (
        "double precision",
        "CASE WHEN id % 89 = 0 THEN '-Infinity' WHEN id % 83 = 0 THEN '-0'"
        " ELSE (random() - 0.5) * power(10::float8, floor(random() * 600) - 300) END",
        "{0}::float8",
    ),
    "r": ("real", "((random() - 0.5) * power(10::float8, floor(random() * 60) - 30))::real", "{0}::real"),
    "t": ("text", LARGE, "{0}"),
    "y": ("bytea", "decode(repeat(md5(random()::text), id % 3), 'hex')", "decode({0}, 'base64')"),
    "at": ("timestamp", "timestamp '0300-01-01 BC' + random() * interval '12000 years'", "{0}::timestamp"),
    "iv": (
        "interval",
        "make_interval(floor((random() - 0.5) * 99)::int, floor(random() * 30)::int, 0,"
        " floor((random() - 0.5) * 99)::int, 0, 0, (random() - 0.5) * 1e6)",
        "{0}::interval",
    ),
    "j": ("jsonb", "jsonb_build_object('k', random(), 'v', " + SMALL + ")", "{0}::jsonb"),
    "ints": (
        "integer[]",
        "(SELECT array_agg(CASE WHEN random() < 0.9 THEN (random() * 1e9)::int END) FROM generate_series(1, id % 5))",
        "ARRAY(SELECT item::int FROM json_array_elements_text({0}) item)",
    ),
    "texts": (
        "text[]",
        "(SELECT array_agg(CASE WHEN random() < 0.9 THEN substr(" + SMALL + ", 1, g) END)"
        " FROM generate_series(0, id % 5) g)",
        "ARRAY(SELECT item FROM json_array_elements_text({0}) item)",
    ),
}


@pytest.fixture
def source(fresh_database: str) -> Iterator[Source]:
    config = SourceConfig.model_validate({"dsn": fresh_database, "tables": ("public.things",)})
    with connect(config) as connection:
        connection.execute("SET search_path = public")
        yield Source(connection)


def create(source: Source) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    source.connection.execute("CREATE UNLOGGED TABLE staged (id int, record json)")
    source.connection.execute(f"CREATE TABLE things (id int PRIMARY KEY, {columns})".encode())
    source.publish()
    values = ", ".join(
        f"CASE WHEN (id + {i}) % 29 > 0 THEN {value} END" for i, (_, value, _) in enumerate(COLUMNS.values())
    )
    source.connection.execute(f"SELECT setseed({SEED})".encode())
    source.connection.execute(f"INSERT INTO things SELECT id, {values} FROM generate_series(1, {ROWS}) id".encode())


def differing(source: Source) -> dict[str, int]:
    """For each column in how many rows the value made again of the record is another, or is printed in another way."""
    fields = ", ".join(f"{name} {'json' if kind.endswith('[]') else 'text'}" for name, (kind, _, _) in COLUMNS.items())
    made = ", ".join(
        f"(CASE WHEN r.{name} IS NOT NULL THEN {back.format(f'r.{name}')} END)::{kind} AS {name}"
        for name, (kind, _, back) in COLUMNS.items()
    )
    counts = ", ".join(
        f"count(*) FILTER (WHERE m.{name} IS DISTINCT FROM t.{name} OR m.{name}::text IS DISTINCT FROM t.{name}::text)"
        for name in COLUMNS
    )
    query = (
        f"SELECT {counts} FROM things t JOIN staged s USING (id),"
        f" LATERAL json_to_record(s.record) AS r({fields}), LATERAL (SELECT {made}) m"
    )
    row = source.connection.execute(query.encode()).fetchone()
    assert row is not None
    return dict(zip(COLUMNS, row, strict=True))


@pytest.mark.promise(1)
def test_a_hundred_thousand_random_rows_come_back_as_they_were_from_stream_and_snapshot(source: Source) -> None:
    create(source)
    streamed = source.records()
    assert len(streamed) == ROWS
    copied = source.copied()
    assert [bytes_of_row(record) for record in streamed] == [bytes_of_row(record) for record in copied]
    assert [record[0] for record in streamed] == [record[0] for record in copied]

    with source.connection.cursor() as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
        for record in streamed:
            row = bytes_of_row(record).removeprefix(b'{"before":null,"after":')
            copy.write_row((int(json.loads(record[0])["id"]), row.decode()))
    assert differing(source) == dict.fromkeys(COLUMNS, 0)
    found = source.connection.execute("SELECT count(*) FROM staged WHERE record ->> 'id' = id::text").fetchone()
    assert found == (ROWS,)

"""Every kind of type, with its edge values: what the server has, through the stream and through COPY the same bytes."""

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect
from tests.conftest import PostgresServer
from tests.support import value_matrix
from tests.support.decoding import Source, bytes_of_row, part
from tests.support.value_matrix import Typed

NUMBERS = {"bigint", "integer", "smallint", "oid", "double precision", "real"}


@pytest.fixture(params=value_matrix.SERVERS)
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def matrix(server: PostgresServer) -> Iterator[tuple[Source, list[tuple[str, Typed]]]]:
    """The table of all types, published and empty."""
    with value_matrix.database(server) as (_, connection, columns):
        yield Source(connection), columns


@pytest.fixture
def fresh_source(fresh_database: str) -> Iterator[Source]:
    """PostgreSQL 18, with nothing in it yet."""
    config = SourceConfig.model_validate({"dsn": fresh_database, "tables": ("public.things",)})
    with connect(config) as connection:
        connection.execute("SET search_path = public")
        yield Source(connection)


def database_values(connection: psycopg.Connection, name: str, form: str) -> list[Any]:
    """What the server itself makes of a column's values, row by row, in the form that a record should hold."""
    is_array = form.endswith("[]")
    # format(), unlike ::text, keeps char's padding.
    texts = "CASE WHEN num_nonnulls({column}) = 1 THEN format('%%s', {column}) END"
    # Casts of these to text print something else than their output functions do.
    cast = "" if form in ("inet[]", "char(3)[]") else "::text[]"
    arrays = f"to_json({{column}}{cast})::text" if is_array else "NULL"
    query = sql.SQL("SELECT " + texts + ", " + arrays + " FROM things ORDER BY id").format(column=sql.Identifier(name))
    found: list[Any] = []
    for text, array in connection.execute(query, ()):
        if text is None:
            found.append(None)
        elif is_array and text.startswith("{"):  # else its subscripts do not start at 1: it stays text
            found.append(elements(array, form.removesuffix("[]")))
        else:
            found.append(scalar(text, form))
    return found


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


def exactly(value: Any, kind: str) -> str:
    """Tells 1 from true and "1", 0.0 from -0.0, but not 1 from 1.0 in a column of doubles."""
    if kind in ("real", "double precision") and isinstance(value, int):
        value = float(value)
    return repr(value)


@pytest.mark.promise(1)
def test_every_type_is_as_the_server_has_it_in_stream_and_snapshot(
    matrix: tuple[Source, list[tuple[str, Typed]]],
) -> None:
    source, columns = matrix
    source.publish()
    count = value_matrix.insert(source.connection, columns)
    records = source.records()
    assert [json.loads(key) for key, _, _ in records] == [{"id": i} for i in range(count)]
    rows = [part(record, "after") for record in records]
    assert all(list(row) == ["id", *(name for name, _ in columns)] for row in rows)
    assert len({column.type for _, column in columns}) >= 60
    different = [
        (column.type, i, row[name], expected)
        for name, column in columns
        for i, (row, expected) in enumerate(
            zip(rows, database_values(source.connection, name, column.form), strict=True)
        )
        if exactly(row[name], column.form) != exactly(expected, column.form)
    ]
    assert different == []

    copied = source.copied()
    assert [bytes_of_row(record) for record in copied] == [bytes_of_row(record) for record in records]
    assert [record[0] for record in copied] == [record[0] for record in records]


def test_a_table_has_as_many_columns_as_the_server_allows(fresh_source: Source) -> None:
    names = ", ".join(f'"c{i}ë" bool' for i in range(1599))
    fresh_source.connection.execute(f"CREATE TABLE things (id int PRIMARY KEY, {names})".encode())
    fresh_source.publish()
    fresh_source.connection.execute("INSERT INTO things VALUES (1, true, NULL, false)")
    fresh_source.connection.execute("UPDATE things SET c1598ë = true")
    inserted, updated = fresh_source.records()
    assert part(updated, "after") == {"id": 1} | {f"c{i}ë": {0: True, 2: False, 1598: True}.get(i) for i in range(1599)}
    [copied] = fresh_source.copied()
    assert bytes_of_row(copied) == bytes_of_row(updated)
    assert part(inserted, "after")["c1598ë"] is None

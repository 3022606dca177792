"""Values in binary format, which is asked for where PostgreSQL can't make their text in one piece: of every kind of
type they become the text that the server itself sends, in the stream and in COPY."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.pgoutput.binary_rows import BinaryMessages
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.frames import XLOG_DATA_BYTES
from cdc.pgoutput.messages import Relation
from cdc.pgoutput.row_parts import BINARY, take_apart
from cdc.postgres.binary_copy import copy_binary
from cdc.postgres.connection import connect
from cdc.postgres.copy_lines import fields_of
from cdc.postgres.types import PostgresTypes
from tests import value_matrix
from tests.captured import Captured
from tests.conftest import PostgresServer
from tests.decoding import Source
from tests.integration.conftest import ITEMS, OTHER

FRAME_HEAD = b"w" + bytes(XLOG_DATA_BYTES - 1)
# Types that have a binary format; of arrays their elements.
SENDABLE = """
SELECT t.oid::int8 FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
WHERE t.typsend <> 0 AND (e.oid IS NULL OR e.typsend <> 0)
"""
HUGE = "convert_to(repeat('x', 540000000), 'UTF8')"  # its text has 1.08 GB, and a text at most 2^30 bytes


@pytest.fixture(params=value_matrix.SERVERS)
def config(request: pytest.FixtureRequest) -> Iterator[SourceConfig]:
    """A database whose table `things` has all types."""
    server: PostgresServer = request.getfixturevalue(request.param)
    with value_matrix.database(server) as (made, connection, columns):
        connection.execute("ALTER TABLE things REPLICA IDENTITY FULL")
        connection.execute("CREATE PUBLICATION everything FOR TABLE things")
        connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        value_matrix.insert(connection, columns)
        yield made


def peek(connection: psycopg.Connection, *options: str) -> list[bytes]:
    """The log's messages."""
    found = connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(current_database(), NULL, NULL, VARIADIC %s)",
        [["proto_version", "1", "publication_names", "everything", *options]],
    ).fetchall()
    return [data for (data,) in found]


def binary_values(messages: list[bytes]) -> int:
    parts = filter(None, (take_apart(memoryview(message)) for message in messages))
    return sum(value.kind == BINARY for found in parts for row in found.tuples for value in row.values)


def differences(turned: list[bytes], texts: list[bytes]) -> Iterator[tuple[str, object, object]]:
    """Column, what was made, what it should be."""
    names: list[str] = []
    for made, expected in zip(turned, texts, strict=True):
        message = decode(expected, "")
        if isinstance(message, Relation):
            names = [column.name for column in message.columns]
        if made == expected:
            continue
        parts = [take_apart(memoryview(whole)) for whole in (made, expected)]
        assert parts[0] is not None
        assert parts[1] is not None
        for row, row_expected in zip(parts[0].tuples, parts[1].tuples, strict=True):
            for name, value, text in zip(names, row.values, row_expected.values, strict=True):
                if (value.kind, bytes(value.content)) != (text.kind, bytes(text.content)):
                    yield name, (value.kind, bytes(value.content)), (text.kind, bytes(text.content))


@pytest.mark.promise(1)
def test_values_of_every_type_are_those_of_a_stream_of_text(config: SourceConfig) -> None:
    with connect(config) as connection, closing(PostgresTypes(config)) as types:
        connection.execute("UPDATE public.things SET id = id + 1000")
        connection.execute("DELETE FROM public.things")
        texts, binary = peek(connection), peek(connection, "binary", "true")
        assert binary_values(binary) > 1_000
        made = BinaryMessages(types, row_bytes_max=1 << 30)
        turned = made.with_texts([FRAME_HEAD + message for message in binary])
        assert len(turned) == len(texts)
        assert list(differences([frame[XLOG_DATA_BYTES:] for frame in turned], texts)) == []


@pytest.mark.promise(1)
def test_lines_of_copy_are_those_of_its_text_format(config: SourceConfig) -> None:
    with connect(config) as connection:
        connection.execute("SET search_path = public")
        source = Source(connection)
        connection.execute("SELECT pg_drop_replication_slot(current_database()); DROP PUBLICATION everything")
        source.publish()
        connection.execute("RESET search_path")
        sendable = {oid for (oid,) in connection.execute(SENDABLE).fetchall()}
        columns = tuple(column for column in source.schema.columns if column.type_oid in sendable)
        schema = replace(source.schema, columns=columns)
        query = sql.SQL("COPY (SELECT {} FROM public.things ORDER BY id) TO STDOUT").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in schema.columns)
        )
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            lines = [bytes(line).removesuffix(b"\n") for line in copy]
        copied = copy_binary(config, connection, schema, query, 1 << 30)
        different = [
            (column.type_name, made, expected)
            for line, text in zip(copied.lines, lines, strict=True)
            for column, made, expected in zip(columns, fields_of(line), fields_of(text), strict=True)
            if made != expected
        ]
        assert different == []
        assert (copied.row_count, copied.is_ended) == (len(lines), True)
        first = copy_binary(config, connection, schema, query, 1)
        assert list(first.lines) == lines[:1]
        assert first.row_count == len(lines)


def test_a_value_that_the_server_has_no_text_of_stays_as_it_is(config: SourceConfig) -> None:
    with closing(PostgresTypes(config)) as types:
        number, date = (23, b"\0\0\0\7"), (1082, b"\0\0\0\0")
        damaged = (1082, b"\0")
        assert types.texts([date, damaged, number, damaged, date]) == [b"2000-01-01", None, b"7", None, b"2000-01-01"]


def test_rows_whose_text_the_server_cannot_send_are_dead_letters_and_others_go_on(items: Captured) -> None:
    """One is there before capture, one comes in the stream."""
    items.query("ALTER TABLE items ADD data bytea STORAGE EXTERNAL, ADD at timestamptz")
    items.tables = [ITEMS, OTHER]
    items.settings = {"capture": {"on_unpublishable": "dead_letter"}}
    items.query(
        f"INSERT INTO items VALUES (1, 'huge', {HUGE}, NULL), (2, E'a\\t\\\\', 'xyz', '2026-01-31 01:02:03.4Z')"
    )
    items.query("INSERT INTO other VALUES (1)")
    capture = items.start()
    items.await_caught_up()
    with items.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO items VALUES (3, 'three', 'xyz', '2026-01-31 01:02:03.4Z')")
        connection.execute(f"UPDATE items SET data = {HUGE} WHERE id = 2")
        connection.execute("INSERT INTO other VALUES (2)")
        connection.execute("DELETE FROM other WHERE id = 1")
    items.await_caught_up()
    capture.await_said("reading text again")
    items.query("INSERT INTO items VALUES (4, 'four'); INSERT INTO other VALUES (3)")
    items.await_caught_up()
    assert "Traceback" not in capture.said()
    assert capture.said().count("reading in binary format") == 1
    letters = items.records("dead-letter")
    assert [(record.key, record.value) for record in letters] == [(b'{"id":1}', None), (b'{"id":2}', None)]
    for record in letters:
        reason = dict(record.headers)["watershed.reason"]
        assert reason.startswith(b"public.items (key column id) at ")
        assert b": column data has " in reason
    at, data = "2026-01-31T01:02:03.4Z", "eHl6"
    assert {(change.table, change.key["id"]): change.after for change in items.changes()} == {
        (ITEMS, 2): {"id": 2, "name": "a\t\\", "data": data, "at": at},  # as it was before
        (ITEMS, 3): {"id": 3, "name": "three", "data": data, "at": at},
        (ITEMS, 4): {"id": 4, "name": "four", "data": None, "at": None},
        (OTHER, 1): None,
        (OTHER, 2): {"id": 2},
        (OTHER, 3): {"id": 3},
    }

"""Databases in other encodings than UTF-8, over a real replication connection, by chunks and by the consistent load."""

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.settings import SourceConfig
from cdc.formats.records import TableEncoder
from cdc.model.errors import SourceError, UnsupportedChangeError
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.frames import XLOG_DATA_BYTES, start_lsn
from cdc.pgoutput.messages import Commit
from cdc.pgoutput.relations import relation_of
from cdc.ports.row_reader import FoundRows, RequestedRow, RowsRequest
from cdc.postgres.connection import connect
from cdc.postgres.exported_snapshot import SnapshotReader
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.toast_reader import PostgresRowReader
from tests.conftest import PostgresServer, drop_database
from tests.support.chunk_reading import Source, chunk
from tests.support.decoding import CONTEXT
from tests.support.holes import finished
from tests.support.snapshot_ports import UnfollowedTables, engine_of

THINGS = TableId("public", "things")


@contextmanager
def database_in(encoding: str, server: PostgresServer, text: bytes) -> Iterator[Source]:
    """With a published table of one row, whose text was sent as these bytes of the encoding."""
    name = f"t{secrets.token_hex(5)}"
    owner = str(conninfo_to_dict(server.dsn)["user"])
    create = sql.SQL(
        "CREATE DATABASE {} OWNER {} ENCODING {} TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
    ).format(sql.Identifier(name), sql.Identifier(owner), sql.Literal(encoding))
    with psycopg.connect(server.superuser_dsn, autocommit=True) as superuser:
        superuser.execute(create)
    dsn = make_conninfo(server.dsn, dbname=name)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            made = Source(server, dsn, connection)
            made.execute(f"SET client_encoding = '{encoding}'")
            connection.execute(b"CREATE TABLE things (id text PRIMARY KEY, v text)")
            made.publish("things")
            made.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
            connection.execute(b"INSERT INTO things VALUES ('k', '" + text + b"')")
            made.execute("SET client_encoding = 'UTF8'")
            yield made
    finally:
        drop_database(server, name)


def frames_of_one_transaction(source: Source) -> list[bytes]:
    config = SourceConfig.model_validate({"dsn": source.dsn, "tables": (str(THINGS),)})
    stream = ReplicationConnection(config)
    try:
        [(slot,)] = source.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        )
        stream.start(slot, source.publication_name, Lsn(0))
        frames: list[bytes] = []
        while not frames or not isinstance(decode(frames[-1][XLOG_DATA_BYTES:], "here"), Commit):
            read = stream.read(100, 1 << 20)
            frames += [frame for frame in read if frame[:1] == b"w"]
            if not read:
                stream.wait(10)
        return frames
    finally:
        stream.close()


def assembled(schema: TableSchema, frames: list[bytes]) -> tuple[list[TopicRecord], UnsupportedChangeError | None]:
    resume = StreamState(Lsn(1), None, 0, 0)
    assembler = Assembler(
        CapturedTables([schema]),
        CONTEXT,
        resume,
        engine_of([schema], CONTEXT),
        UnfollowedTables(),
    )
    records, failure = assembler.consume(frames, 17)
    return finished(records), failure


def lines_by_chunk_and_load(source: Source, schema: TableSchema) -> list[bytes]:
    with source.reader(schema) as asked:
        lines = [*asked.chunk(schema, asked.begin(schema)).lines]
    config = SourceConfig.model_validate({"dsn": source.dsn, "tables": (str(THINGS),)})
    with connect(config) as exporter:
        exporter.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        with closing(SnapshotReader(config, row[0])) as reader:
            lines += reader.lines(schema, row_filter=None)
    return lines


def encoder_of(schema: TableSchema) -> TableEncoder:
    made = TableEncoder(schema, relation_of(schema), CONTEXT)
    made.start_snapshot(5, 6)
    return made


@pytest.mark.parametrize(("encoding", "text"), [("LATIN1", b"Zo\xeb \xbf"), ("SQL_ASCII", "Zoë ¿".encode())])
def test_text_of_another_encoding_is_published_as_utf_8(postgres: PostgresServer, encoding: str, text: bytes) -> None:
    with database_in(encoding, postgres, text) as source:
        schema = source.schema(THINGS)
        records, failure = assembled(schema, frames_of_one_transaction(source))
        assert failure is None
        [record] = records
        assert record.value is not None
        assert json.loads(record.value)["after"] == {"id": "k", "v": "Zoë ¿"}
        for line in lines_by_chunk_and_load(source, schema):
            key, value, _ = encoder_of(schema).copy_row(line, 5, 0, 1, 17)
            assert value is not None
            assert (key, json.loads(value)["after"]) == (record.key, {"id": "k", "v": "Zoë ¿"})


def test_bytes_that_are_not_utf_8_stop_with_table_and_position_and_are_never_replaced(postgres: PostgresServer) -> None:
    with database_in("SQL_ASCII", postgres, b"Zo\xeb") as source:
        schema = source.schema(THINGS)
        frames = frames_of_one_transaction(source)
        insert = next(frame for frame in frames if frame[XLOG_DATA_BYTES : XLOG_DATA_BYTES + 1] == b"I")
        assert start_lsn(insert) > 0
        records, failure = assembled(schema, frames)
        assert records == []
        assert failure is not None
        assert failure.message.startswith("public.things at 0/")
        assert failure.message.endswith("#0: a value is not UTF-8")
        for line in lines_by_chunk_and_load(source, schema):
            with pytest.raises(UnsupportedChangeError, match=r"public\.things at 0/5#0: a value is not UTF-8"):
                encoder_of(schema).copy_row(line, 5, 0, 1, 17)
        source.execute("SET client_encoding = 'SQL_ASCII'")
        source.connection.execute(b"UPDATE things SET id = '\xeb'")
        source.execute("SET client_encoding = 'UTF8'")
        with source.reader(schema) as asked:
            failed = asked.fail(chunk(schema, asked.begin(schema).fingerprint))
        assert isinstance(failed.error, SourceError)
        assert failed.error.message == "a key in table public.things is not UTF-8"
        assert failed.is_permanent


def test_bytes_that_are_not_utf_8_are_read_by_key_as_they_are(postgres: PostgresServer) -> None:
    """Each value is checked after the reading, so one that is not UTF-8 affects no other row."""
    with database_in("SQL_ASCII", postgres, b"Zo\xeb") as source:
        source.execute("INSERT INTO things VALUES ('l', 'other')")
        schema = source.schema(THINGS)
        rows = tuple(RequestedRow((schema.topic, key.encode()), (key,), 0, 0) for key in ("k", "l"))
        config = SourceConfig.model_validate({"dsn": source.dsn, "tables": (str(THINGS),)})
        with closing(PostgresRowReader(config, source.publication(THINGS))) as reader:
            found = reader.read(RowsRequest(schema, ("v",), rows), 1 << 20, lambda: None)
        assert isinstance(found, FoundRows), found
        assert found.rows == ((b"Zo\xeb",), (b"other",))

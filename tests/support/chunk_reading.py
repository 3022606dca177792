"""Opens the reader of existing rows on a real server and waits for its answers."""

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.config.settings import SourceConfig
from cdc.model.events import TableId, TableSchema
from cdc.ports.chunk_reader import (
    Answer,
    BarrierPassed,
    Chunk,
    ChunkRead,
    DescribeTable,
    Key,
    LookedUp,
    Lookup,
    ReadFailed,
    Request,
    TableDescribed,
    TransactionBarrier,
)
from cdc.ports.stream import Probe, unarmed
from cdc.postgres.catalog import Publication, create_publication_statement, read_publication, read_table
from cdc.postgres.chunks import PostgresChunkReader
from tests.conftest import PostgresServer
from tests.support.waiting import eventually

READER = "watershed snapshot"  # the application name of the reader's connections
ANSWER_S_MAX = 20.0


@dataclass
class Source:
    """A database, and what a session would know of its tables."""

    server: PostgresServer
    dsn: str
    connection: psycopg.Connection  # by the tables' owner
    publication_name: str = "watershed"

    @property
    def superuser_dsn(self) -> str:
        return make_conninfo(self.server.superuser_dsn, dbname=str(conninfo_to_dict(self.dsn)["dbname"]))

    @contextmanager
    def superuser(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.superuser_dsn, autocommit=True) as connection:
            yield connection

    def execute(self, statement: LiteralString | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def publish(self, *names: str) -> None:
        """In a publication of their own."""
        tables = [TableId("public", name) for name in names]
        self.connection.execute(create_publication_statement(self.publication_name, tables))

    def publication(self, *tables: TableId) -> Publication:
        found = read_publication(self.connection, self.publication_name, tables)
        assert found is not None
        return found

    def schema(self, table: TableId) -> TableSchema:
        """As of now."""
        found = read_table(self.connection, table, self.publication(table).columns[table])
        return TableSchema(table, 1, found.oid, found.columns, found.key, str(table))

    @contextmanager
    def reader(
        self,
        *schemas: TableSchema,
        workers: int = 1,
        split_rows_min: int = 1_000_000,
        dsn: str | None = None,
        at: Probe = unarmed,
    ) -> Iterator["Asked"]:
        """`at`: called in the reader's thread at each failpoint."""
        config = SourceConfig(dsn=dsn or self.dsn, tables=tuple(str(schema.table) for schema in schemas))
        passed: list[str] = []
        moved = threading.Event()

        def probe(name: str) -> None:
            at(name)
            passed.append(name)
            moved.set()

        publication = self.publication(*(schema.table for schema in schemas))
        with closing(PostgresChunkReader(config, publication, workers, split_rows_min, probe)) as reader:
            yield Asked(reader, passed, moved)

    def backends(self, state: str | None = None) -> list[int]:
        """Pids of the reader's sessions in this database; those in a state only."""
        return [
            pid
            for (pid,) in self.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
                " AND (%s::text IS NULL OR %s IN (state, wait_event_type))",
                READER, state, state,
            )
        ]  # fmt: skip

    def await_fence_looks(self) -> None:
        """A fence that was asked for knows what it waits for."""
        eventually(
            lambda: self.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
                " AND state = 'idle' AND query ~ 'pg_locks|pg_current'", READER,
            )
        )  # fmt: skip

    @contextmanager
    def slot(self) -> Iterator[str]:
        """A logical slot that begins here."""
        name = f"s{secrets.token_hex(6)}"
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        yield name
        self.execute("SELECT pg_drop_replication_slot(%s)", name)

    def messages(self, slot: str) -> list[bytes]:
        """What pgoutput has sent since the last call."""
        return [
            message
            for (message,) in self.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
                " 'publication_names', %s, 'messages', 'true')",
                slot, self.publication_name,
            )
        ]  # fmt: skip

    def watermarks(self, slot: str) -> list[str]:
        """Contents of the marks among `messages`."""
        head = 1 + 1 + 8  # M, flags, LSN; then prefix and its end, length, content
        reported = [m[head:].partition(b"\0") for m in self.messages(slot) if m[:1] == b"M"]
        return [rest[4:].decode() for prefix, _, rest in reported if prefix == b"watershed"]


@dataclass
class Asked:
    """Asks, and waits for answers."""

    reader: PostgresChunkReader
    passed: list[str]  # failpoints
    moved: threading.Event  # when one was passed
    got: list[Answer] = field(default_factory=list)

    def send(self, request: Request) -> str:
        self.reader.ask(request)
        return request.nonce

    def answers(self, nonce: str) -> list[Answer]:
        """So far."""
        self.got += self.reader.answers()
        return [answer for answer in self.got if answer.nonce == nonce]

    def wait(self, nonce: str) -> Answer:
        """The first answer."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while not (found := self.answers(nonce)):
            assert time.monotonic() < deadline, "no answer"
            self.moved.wait(0.02)
            self.moved.clear()
        return found[0]

    def ask(self, request: Request) -> Answer:
        return self.wait(self.send(request))

    def begin(self, schema: TableSchema, ranges: int = 1) -> TableDescribed:
        answer = self.ask(DescribeTable(nonce(), schema, ranges))
        assert isinstance(answer, TableDescribed), answer
        return answer

    def chunk(self, schema: TableSchema, begun: TableDescribed, **changed: Any) -> ChunkRead:
        answer = self.ask(chunk(schema, begun.fingerprint, **changed))
        assert isinstance(answer, ChunkRead), answer
        return answer

    def absent(
        self,
        schema: TableSchema,
        begun: TableDescribed,
        keys: Sequence[bytes],
        after: Key | None = None,
        up_to: Key | None = None,
    ) -> tuple[bytes, ...]:
        """Record keys that have no row."""
        answer = self.ask(Lookup(nonce(), schema, begun.fingerprint, tuple(keys), after, up_to))
        assert isinstance(answer, LookedUp), answer
        return answer.absent

    def fail(self, request: Request) -> ReadFailed:
        answer = self.ask(request)
        assert isinstance(answer, ReadFailed), answer
        return answer

    def barrier(self) -> BarrierPassed:
        answer = self.ask(TransactionBarrier(nonce()))
        assert isinstance(answer, BarrierPassed), answer
        return answer

    def chunks(
        self, schema: TableSchema, begun: TableDescribed, after: Key | None = None, **changed: Any
    ) -> list[ChunkRead]:
        """All of a range, one after the other."""
        read: list[ChunkRead] = []
        while not read or not read[-1].is_end:
            read.append(self.chunk(schema, begun, after=after, **changed))
            after = read[-1].last or after
        return read


def chunk(schema: TableSchema, fingerprint: str, **changed: Any) -> Chunk:
    settings: dict[str, Any] = {
        "after": None, "up_to": None, "where": None, "rows_max": 1000, "bytes_max": 1 << 20, **changed,
    }  # fmt: skip
    return Chunk(nonce=nonce(), schema=schema, fingerprint=fingerprint, **settings)


def nonce() -> str:
    return secrets.token_hex(16)


def lines_of(chunks: list[ChunkRead]) -> list[bytes]:
    return [line for read in chunks for line in read.lines]

"""Present rows of one source table, read in short transactions: chunk by chunk, by key, or a sample of keys."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final, LiteralString, NamedTuple, Self

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError, WatershedError
from cdc.model.events import TableSchema
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.chunk_reader import Key
from cdc.postgres.catalog import read_publication
from cdc.postgres.chunk_statements import ChunkTable, chunk_statement, reread_statement, sample_statement
from cdc.postgres.chunk_table import begin_read, describe_for_chunks, size
from cdc.postgres.connection import SourceConnection, connect, lost
from cdc.postgres.copy_lines import Copied, copy_lines, fields_of, key_of
from watershed.verify.table_rows import APPLICATION, TableReader

CHUNK_ROWS_MAX: Final = 10_000
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
BY_KEY_BYTES_MAX: Final = 16 * 1024 * 1024
SAMPLE_BYTES_MAX: Final = 16 * 1024 * 1024
LOCK_WAIT_S: Final = 10
# The planner's number of rows may be too high, and pages are not equally full: more keys are read than are wanted.
SAMPLE_SURPLUS: Final = 2.0
SAMPLE_GROWTH: Final = 4.0
# Which transactions have written to the table and have not ended. One that is idle has not begun its commit.
_WRITERS: LiteralString = """
SELECT DISTINCT l.virtualtransaction
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND coalesce(a.state, '') NOT LIKE 'idle in transaction%%'
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (l.relation = %(oid)s OR l.relation IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))
"""

Texts = tuple[str | None, ...]
"""A row as PostgreSQL prints it, in the order of the schema's columns; None is NULL."""


class SourceRow(NamedTuple):
    xmin: str  # another one after each update
    texts: Texts


class RowsTooLargeError(Exception):
    """The rows of these keys are too large to be in memory at once: ask for fewer."""


class VerifiedTable:
    """Reads one table. Use it in a with statement. Methods raise SourceError, also where the table was altered since it
    was opened, and ConnectionLost."""

    def __init__(self, source: SourceConfig, schema: TableSchema) -> None:
        """Raises SourceError for a table that differs from `schema`, or has no unique index of exactly its key."""
        self.schema = schema
        self._source = source
        with closing(TableReader(source)) as reader:
            shape = reader.shape(schema.table)
        self.types = {column.name: shape.columns.get(column.name, "text") for column in schema.columns}
        self._records = RecordKeys(schema)
        self._places = [[column.name for column in schema.columns].index(name) for name in schema.key]
        self._connection = self._connected()
        try:
            with _explained(schema):
                self._table = self._described()
                self._size = size(self._connection, schema)
                self._connection.execute("COMMIT")
        except WatershedError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def rows_estimated(self) -> int:
        """0: not known."""
        return self._size.rows

    def record_key(self, texts: Sequence[str | None]) -> bytes:
        return self._records.encode([texts[place] or "" for place in self._places])

    def is_key(self, key: bytes) -> bool:
        """Returns whether these bytes are a record key of the table."""
        return self._records.texts(key) is not None

    def rows(self, share: float) -> Iterator[Texts]:
        """Yields every row that is published, in key order, each chunk as of its own moment. `share`: the share of the
        time in which rows are read.
        """
        after: Key | None = None
        while True:
            began = time.monotonic()
            lines, is_end = self._chunk(after)
            took_s = time.monotonic() - began
            for line in lines:
                yield _texts(line)
            if is_end:
                return
            after = key_of(lines[-1], self._places, self.schema.table)
            time.sleep(took_s * (1 / share - 1))

    def by_keys(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        """The rows with these record keys that there are, all as of one moment. Raises RowsTooLargeError."""
        texts = {key: found for key in keys if (found := self._records.texts(key)) is not None}
        if not texts:
            return {}
        rows: list[SourceRow] | None = None
        with _explained(self.schema), suppress(psycopg.DataError):  # some key may be no value of its type
            self._begin()
            rows = self._by_texts(list(texts.values()))
        self._end()
        if rows is None:  # the other keys are read without it
            known = list(texts)
            half = len(known) // 2
            return self.by_keys(known[:half]) | self.by_keys(known[half:]) if half else {}
        # What the index takes for equal may be another record key: 1.0 and 1.00.
        return {key: row for row in rows if (key := self.record_key(row.texts)) in texts}

    def sample(self, count: int) -> list[bytes]:
        """Record keys of `count` rows, or of all if there are fewer, from random pages."""
        percent = 100.0 if not self._size.rows else 100.0 * SAMPLE_SURPLUS * count / self._size.rows
        copied = self._sample_pages(percent)
        # Few pages are a coarse sample, and pages that updates emptied hold few rows: more pages until it is enough.
        while copied.row_count < count and percent < 100.0:
            percent *= SAMPLE_GROWTH
            copied = self._sample_pages(percent)
        places = range(len(self._table.key))
        step = max(1, len(copied.lines) // count)
        keys = (key_of(line, places, self.schema.table) for line in copied.lines[::step])
        return [self._records.encode(key) for key in keys][:count]

    def _sample_pages(self, percent: float) -> Copied:
        statement = sample_statement(self._table, min(100.0, max(percent, 1e-6)))
        with _explained(self.schema):
            self._begin()
            copied = copy_lines(self._connection, statement, SAMPLE_BYTES_MAX)
        if copied.is_ended:
            self._end()
        else:
            self._again()
        return copied

    def writers(self) -> set[str]:
        """Transactions that have written to the table, and may have begun their commit. Sees those of now."""
        with _explained(self.schema):
            return {name for (name,) in self._connection.execute(_WRITERS, {"oid": self.schema.oid})}

    def require_unaltered(self) -> None:
        """Raises TableAlteredError if the table was altered since it was opened."""
        with _explained(self.schema):
            self._begin()
        self._end()

    # ---- inside

    def _described(self) -> ChunkTable:
        """Reads the description of the table, in a transaction that stays open."""
        source = self._source
        publication = read_publication(self._connection, source.publication, [self.schema.table])
        if publication is None:
            raise SourceError(f"there is no publication {source.publication}", "start capture: cdc run")
        chosen = source.chosen(self.schema.table)
        return describe_for_chunks(self._connection, self.schema, publication, chosen)[1]

    def _chunk(self, after: Key | None) -> tuple[Sequence[bytes], bool]:
        statement = chunk_statement(self._table, self.schema.columns, CHUNK_ROWS_MAX, after=after)
        with _explained(self.schema):
            self._begin(prefers_index=not self._table.row_filter)
            copied = copy_lines(self._connection, statement, CHUNK_BYTES_MAX)
            if copied.is_ended:
                self._end()
            else:
                self._again()
        return copied.lines, len(copied.lines) == copied.row_count < CHUNK_ROWS_MAX

    def _by_texts(self, keys: Sequence[Key]) -> list[SourceRow]:
        statement = reread_statement(self._table, [column.name for column in self.schema.columns], keys)
        copied = copy_lines(self._connection, statement, BY_KEY_BYTES_MAX)
        if not copied.is_ended or len(copied.lines) < copied.row_count:
            self._again()
            raise RowsTooLargeError
        rows = []
        for line in copied.lines:
            _, xmin, *texts = _texts(line)
            if xmin is not None:
                rows.append(SourceRow(xmin, tuple(texts[2 * len(self._table.key) :])))
        return rows

    def _begin(self, *, prefers_index: bool = False) -> None:
        begin_read(self._connection, self._table, prefers_index=prefers_index)

    def _end(self) -> None:
        self._connection.execute("ROLLBACK")

    def _again(self) -> None:
        """A COPY that was cut off leaves its connection of no use."""
        self._connection.close()
        self._connection = self._connected()

    def _connected(self) -> SourceConnection:
        connection = connect(self._source, application=APPLICATION)
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{LOCK_WAIT_S}s",))
        return connection


def _texts(line: bytes) -> Texts:
    return tuple(None if field is None else field.decode("utf-8", "surrogateescape") for field in fields_of(line))


@contextmanager
def _explained(schema: TableSchema) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise SourceError(
            f"table {schema.table} was locked by another session for more than {LOCK_WAIT_S} s",
            "compare it again later",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the role may not read {schema.table}: {' '.join(str(error).split())}",
            f"as its owner: GRANT SELECT ON {schema.table} TO <role>",
        ) from error
    except psycopg.Error as error:
        raise lost(error) from error

"""Polls the catalog during streaming, because the stream does not report every change of a table (see
cdc/tables/schema_tracking.py).
"""

import queue
from collections.abc import Collection
from typing import LiteralString

import psycopg
import structlog
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.sql_names import sql_name
from cdc.model.table_state import TableFacts
from cdc.model.topics import Topics
from cdc.ports.catalog_reader import CatalogAnswer, CatalogPoll, CatalogPollFailed, DivergedTable, KnownTable
from cdc.postgres.catalog import Publication, existing_tables, read_constants, read_publication, schema_of
from cdc.postgres.catalog_facts import describe_table, read_facts
from cdc.postgres.chunk_statements import watermark_statement
from cdc.postgres.connection import SourceConnection, read_row, says_lost
from cdc.postgres.connection_worker import ConnectionWorker, close_workers
from cdc.postgres.source import published_table
from cdc.tables.matching import match, selection_of

log = structlog.get_logger(__name__)

# The check whether a new partition has rows waits for a lock on it; after this timeout it counts as having rows.
_SETTINGS: LiteralString = "SET synchronous_commit = local; SET lock_timeout = '1s'; SET jit = off"


class PostgresCatalogReader:
    """Implements cdc.ports.catalog_reader.CatalogReader. Thread and connection start at the first poll."""

    def __init__(self, source: SourceConfig, topics: Topics, captured: Collection[TableId] = ()) -> None:
        """`source`: with the tables that its patterns take in this session. `captured`: tables that ever were."""
        self._source = source
        self._captured = frozenset(captured)
        self._selection = selection_of(source)
        self._topics = topics
        self._answers: queue.SimpleQueue[CatalogAnswer | CatalogPollFailed] = queue.SimpleQueue()
        self._worker: ConnectionWorker[CatalogPoll] = ConnectionWorker(
            source, queue.SimpleQueue(), self._serve, _SETTINGS
        )

    def ask(self, poll: CatalogPoll) -> None:
        self._worker.start()
        self._worker.requests.put(poll)

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        close_workers([self._worker])

    # ---- in the thread

    def _serve(self, worker: ConnectionWorker[CatalogPoll], poll: CatalogPoll) -> None:
        try:
            connection = worker.connection()
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            answer = self._query(connection, poll)
            connection.execute("COMMIT")
            self._answers.put(answer)
            if answer.seen:
                connection.execute(watermark_statement(poll.nonce))
        except Exception as error:  # noqa: BLE001 - the outermost handler of the thread: every poll must be answered
            worker.drop()
            self._answers.put(CatalogPollFailed(poll.nonce))
            if not worker.closing.is_set():
                # The stream will notice a lost server, with a more specific error.
                reason = error.message if isinstance(error, WatershedError) else type(error).__name__
                log.debug("catalog poll failed", error=reason)

    def _query(self, connection: SourceConnection, poll: CatalogPoll) -> CatalogAnswer:
        tables = [*poll.tables, *poll.stopped]
        publication = read_publication(connection, self._source.publication, tables)
        if publication is None:
            return CatalogAnswer(poll.nonce, None, {}, frozenset())
        facts = read_facts(connection, tables)
        seen: dict[TableId, DivergedTable] = {}
        for table, known in poll.tables.items():
            now, entry = facts.get(table), publication.entries.get(table, "")
            if now is None or (now, entry) != (known.facts, known.entry):
                seen[table] = self._compare(connection, table, known, now, publication)
        ready = set()
        for table, tried in poll.stopped.items():
            description = describe_table(connection, self._source, table, publication, facts.get(table))
            if description.barrier is None and description.state != tried:
                ready.add(table)
        begun, ended = self._rematch(connection)
        return CatalogAnswer(poll.nonce, publication.fingerprint, seen, frozenset(ready), begun, ended)

    def _rematch(self, connection: SourceConnection) -> tuple[tuple[TableId, ...], tuple[TableId, ...]]:
        """Returns the tables that patterns take, and took not, and the other way round."""
        if not self._source.choice.patterns:
            return (), ()
        had = set(map(TableId.parse, self._source.matched))
        now = match(self._source, existing_tables(connection), self._selection, self._topics, self._captured).taken
        return tuple(table for table in now if table not in had), tuple(sorted(had.difference(now)))

    def _compare(
        self,
        connection: SourceConnection,
        table: TableId,
        known: KnownTable,
        facts: TableFacts | None,
        publication: Publication,
    ) -> DivergedTable:
        entry = publication.entries.get(table, "")
        try:
            found = published_table(connection, table, publication, self._source.chosen(table))
        except (SourceError, ConfigError) as error:
            why: WatershedError = error if facts is not None else _missing(connection, table, known.schema.oid)
            return DivergedTable(None, facts, why, entry, frozenset())
        schema = schema_of(found, known.schema, self._topics)
        had = {part.oid for part in known.facts.storage if not part.is_met} if known.facts is not None else set()
        added = {part.oid for part in facts.storage} - had if facts is not None and known.facts is not None else set()
        filled = frozenset(oid for oid in added if _may_hold_rows(connection, oid))
        return DivergedTable(schema, facts, None, entry, filled, _constants(connection, known.facts, facts))


@says_lost()
def _missing(connection: SourceConnection, table: TableId, oid: int) -> SourceError:
    """Returns the error for a table that has not its name any more."""
    row = connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = %s::int8::oid",
        (oid,),
    ).fetchone()
    if row is None:
        return SourceError(
            f"table {table} was dropped",
            "remove it from source.tables; or create it again, and it is added again automatically",
        )
    now = TableId(*row)
    back = "give it its name back"
    if now.schema == table.schema:
        back = f"ALTER TABLE {sql_name(*now)} RENAME TO {sql_name(table.name)}"
    return SourceError(
        f"table {table} was renamed: it is {now} now",
        f"{back}; or name {now} in source.tables instead: its rows are then read into a topic of its own",
    )


def _constants(connection: SourceConnection, then: TableFacts | None, now: TableFacts | None) -> dict[str, str]:
    """Returns the constants of the columns that were added meanwhile."""
    if then is None or now is None:
        return {}
    had = {column.number for column in then.columns}
    names = [column.name for column in now.columns if column.number not in had and column.has_missing]
    return read_constants(connection, now.oid, names) if names else {}


def _may_hold_rows(connection: SourceConnection, oid: int) -> bool:
    (name,) = read_row(connection, "SELECT %(oid)s::oid::regclass::text", {"oid": oid})
    try:
        with connection.transaction():
            # regclass quotes the name where that is needed.
            statement = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {})").format(sql.SQL(name))
            return connection.execute(statement).fetchone() == (True,)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
        return True

"""The source's log, slot and publication, for the status and for waits, read over a connection of its own."""

from collections.abc import Mapping
from typing import Any, Final, LiteralString

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.lsn import parse_lsn
from cdc.postgres.connection import connect, lost, read_row
from watershed.client.source_facts import SlotFacts, SourceEnd, SourceFacts

_QUERY: Final = """
SELECT current_database()::text,
       current_setting('server_version'),
       ('x' || substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8))::bit(32)::int,
       pg_current_wal_flush_lsn()::text,
       EXISTS (SELECT FROM pg_publication WHERE pubname = %(publication)s)
"""

# Columns that older versions do not have are read from the row as JSON.
_SLOT: Final = """
SELECT (SELECT setting::int8 * 1024 * 1024 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       s.active, s.restart_lsn::text, s.confirmed_flush_lsn::text, s.wal_status, s.safe_wal_size,
       to_jsonb(s) ->> 'invalidation_reason'
  FROM (SELECT 1) AS one LEFT JOIN pg_replication_slots AS s ON s.slot_name = %(slot)s
"""

_END: Final = """
SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database()::text,
       ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
       pg_current_wal_insert_lsn()::text,
       (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_block_size'),
       (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size')
"""


class PostgresSourceReader:
    """Implements watershed.status.facts.SourceReader. Not thread-safe; its connections are kept until they are lost."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._primary = _Server(config)
        self._log = self._primary if config.standby_dsn is None else _Server(config.log_server)

    def read(self) -> SourceFacts:
        """Returns the facts. Raises WatershedError if a server does not answer, or source.dsn leads to a standby."""
        slot_bytes_max, is_active, *slot = self._log.ask(_SLOT, {"slot": self._config.slot})
        row = self._primary.ask(_QUERY, {"publication": self._config.publication})
        database, version, timeline, flush, has_publication = row
        restart, confirmed, wal_status, safe_bytes, invalidation = slot
        return SourceFacts(
            database=database,
            version=version,
            timeline=timeline,
            flush_lsn=parse_lsn(flush),
            slot=None
            if is_active is None
            else SlotFacts(
                is_active=is_active,
                restart_lsn=parse_lsn(restart) if restart else None,
                confirmed_lsn=parse_lsn(confirmed) if confirmed else None,
                wal_status=wal_status,
                safe_wal_bytes=safe_bytes,
                invalidation=invalidation,
            ),
            slot_wal_bytes_max=None if slot_bytes_max is None or slot_bytes_max < 0 else slot_bytes_max,
            has_publication=has_publication,
        )

    def read_end(self) -> SourceEnd:
        """Returns the end of the log. Raises WatershedError if the database does not answer, or is a standby."""
        identifier, database, timeline, insert, page_bytes, segment_bytes = self._primary.ask(_END, {})
        return SourceEnd(identifier, database, timeline, parse_lsn(insert), page_bytes, segment_bytes)

    def close(self) -> None:
        self._primary.close()
        self._log.close()


class _Server:
    """A server and the connection to it."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._connection: psycopg.Connection | None = None

    def ask(self, query: LiteralString, parameters: Mapping[str, str]) -> tuple[Any, ...]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config, application="watershed status")
        try:
            return read_row(self._connection, query, parameters)
        except psycopg.Error as error:
            self.close()
            raise lost(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

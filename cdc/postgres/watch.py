"""What the stream does not tell: a table that is taken out of the publication just falls silent."""

from collections.abc import Sequence

import structlog

from cdc.config import SourceConfig
from cdc.errors import NEXT_AFTER_GAP, ConnectionLost, GapError, UnreachableError
from cdc.events import TableId
from cdc.postgres.catalog import Publication, read_publication
from cdc.postgres.connection import SourceConnection, connect

log = structlog.get_logger(__name__)


class PublicationWatch:
    """Call it now and then; it compares the publication with what it was when the session began."""

    def __init__(self, source: SourceConfig, expected: Publication, tables: Sequence[TableId]) -> None:
        self._source = source
        self._expected = expected
        self._tables = tables
        self._connection: SourceConnection | None = None

    def __call__(self) -> None:
        """Raises GapError when the publication is not what it was."""
        source = self._source
        try:
            if self._connection is None:
                self._connection = connect(source, application="watershed watch")
            publication = read_publication(self._connection, source.publication, self._tables)
        except (ConnectionLost, UnreachableError) as error:
            # The stream will notice a lost server, and its own error says more.
            log.debug("publication not looked at", error=error.message)
            self.close()
            return
        if publication is None or not publication.is_as(self._expected):
            raise GapError(f"publication {source.publication} was altered or dropped", NEXT_AFTER_GAP)

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""What the stream does not tell: a table that is taken out of the publication just falls silent."""

import structlog

from cdc.config import SourceConfig
from cdc.errors import NEXT_AFTER_GAP, ConnectionLost, GapError, UnreachableError
from cdc.postgres.catalog import read_publication
from cdc.postgres.connection import SourceConnection, connect

log = structlog.get_logger(__name__)


class PublicationWatch:
    """Call it now and then; it compares the publication with the one that the position was written under."""

    def __init__(self, source: SourceConfig, expected: str) -> None:
        self._source = source
        self._expected = expected  # fingerprint
        self._connection: SourceConnection | None = None

    def __call__(self) -> None:
        """Raises GapError when the publication is not what it was."""
        source = self._source
        try:
            if self._connection is None:
                self._connection = connect(source, application="watershed watch")
            publication = read_publication(self._connection, source.publication, source.table_ids)
        except (ConnectionLost, UnreachableError) as error:
            # The stream will notice a lost server, and its own error says more.
            log.debug("publication not looked at", error=error.message)
            self.close()
            return
        if publication is None or publication.fingerprint != self._expected:
            raise GapError(f"publication {source.publication} was altered or dropped", NEXT_AFTER_GAP)

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

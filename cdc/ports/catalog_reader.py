"""The port that polls the source's catalog beside the stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.table_state import TableFacts


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A captured table as it was last known; a catalog poll compares the catalog with it."""

    schema: TableSchema
    facts: TableFacts | None  # None: not known yet; the next poll reads them
    entry: str  # fingerprint of its row in the publication


@dataclass(frozen=True, slots=True)
class CatalogPoll:
    """A request to poll the catalog."""

    nonce: str
    tables: Mapping[TableId, KnownTable]
    # Tables that may be captured again, each with its TableDescription.state at the last attempt
    stopped: Mapping[TableId, str]


@dataclass(frozen=True, slots=True)
class DivergedTable:
    """A captured table that differs from what is known of it."""

    schema: TableSchema | None  # the next version, from the catalog; None: the table can't be captured
    facts: TableFacts | None  # None: the table does not exist
    error: WatershedError | None
    entry: str
    filled: frozenset[int]  # oids of added partitions that hold rows
    # Columns that the known facts lack, each with its value in all rows from before it was added, as PostgreSQL prints
    # it; without those of which there is no such value, or that have none.
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """The answer to a poll. If `seen` is not empty, a watermark follows in the log."""

    nonce: str
    publication: str | None  # fingerprint
    seen: Mapping[TableId, DivergedTable]
    ready: frozenset[TableId]  # the stopped tables that can be captured again
    begun: tuple[TableId, ...] = ()  # tables that patterns of the configuration take, and that the session has not
    ended: tuple[TableId, ...] = ()  # those of the session that they take no longer


@dataclass(frozen=True, slots=True)
class CatalogPollFailed:
    """The poll failed, or its watermark could not be written."""

    nonce: str


class CatalogReader(Protocol):
    """Polls the source's catalog beside the stream, one poll at a time."""

    def ask(self, poll: CatalogPoll) -> None:
        """Starts a poll; does not wait."""

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        """Returns the answers that arrived since the last call; does not wait."""

"""The port that polls the source's catalog beside the stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cdc.model.errors import SourceError
from cdc.model.events import TableId, TableSchema
from cdc.records.table_state import TableFacts


@dataclass(frozen=True, slots=True)
class KnownTable:
    """Of a captured table, what a look is held against."""

    schema: TableSchema
    facts: TableFacts | None  # None: not known, the look tells
    entry: str  # fingerprint of its row in the publication


@dataclass(frozen=True, slots=True)
class CatalogPoll:
    """A look at the catalog that is asked for."""

    nonce: str
    tables: Mapping[TableId, KnownTable]
    stopped: Mapping[TableId, str]  # that may join again, each with what was found when it was last tried


@dataclass(frozen=True, slots=True)
class DivergedTable:
    """A captured table that is not as it was known."""

    schema: TableSchema | None  # as the catalog has it, in the next version; None: it can't be captured
    facts: TableFacts | None  # None: it is not there
    error: SourceError | None
    entry: str
    filled: frozenset[int]  # oids of storage that was added and holds rows


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """An answer."""

    nonce: str
    publication: str | None  # fingerprint
    seen: Mapping[TableId, DivergedTable]  # if there are any, the watermark follows
    ready: frozenset[TableId]  # of those that are stopped, which can join now


@dataclass(frozen=True, slots=True)
class CatalogPollFailed:
    """There is no answer, or no watermark behind it."""

    nonce: str


class CatalogReader(Protocol):
    """Looks at the source's catalog beside the stream, one question at a time."""

    def ask(self, question: CatalogPoll) -> None:
        """Returns at once."""

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        """What has come since the last call; returns at once."""

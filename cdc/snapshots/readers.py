"""The reader of the source and the reader of topics as one ChunkReader."""

from dataclasses import dataclass
from typing import Protocol

from cdc.ports.chunk_reader import Answer, KeyPage, Request


class SourceReader(Protocol):
    """A ChunkReader without the requests to topics."""

    def ask(self, request: Request) -> None: ...
    def answers(self) -> list[Answer]: ...


class KeyReader(Protocol):
    """Reads the keys of a topic in pages, one scan at a time."""

    def ask(self, page: KeyPage) -> None: ...
    def answers(self) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Readers:
    """Implements cdc.ports.chunk_reader.ChunkReader."""

    source: SourceReader
    keys: KeyReader

    def ask(self, request: Request | KeyPage) -> None:
        if isinstance(request, KeyPage):
            self.keys.ask(request)
        else:
            self.source.ask(request)

    def answers(self) -> list[Answer]:
        return [*self.source.answers(), *self.keys.answers()]

"""The reader of the source and that of the topics as one."""

from dataclasses import dataclass
from typing import Protocol

from cdc.ports.chunk_reader import Answer, KeyPage, Request


class SourceReader(Protocol):
    """See cdc.ports.chunk_reader.ChunkReader, without what is asked of topics."""

    def ask(self, request: Request) -> None: ...
    def answers(self) -> list[Answer]: ...


class KeyReader(Protocol):
    """Answers pages of a topic's keys, one scan at a time."""

    def ask(self, page: KeyPage) -> None: ...
    def answers(self) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Readers:
    """See cdc.ports.chunk_reader.ChunkReader."""

    source: SourceReader
    keys: KeyReader

    def ask(self, request: Request | KeyPage) -> None:
        if isinstance(request, KeyPage):
            self.keys.ask(request)
        else:
            self.source.ask(request)

    def answers(self) -> list[Answer]:
        return [*self.source.answers(), *self.keys.answers()]

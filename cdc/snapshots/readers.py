"""The reader of the source and the reader of topics as one ChunkReader."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdc.ports.chunk_reader import Answer, KeyPage, Request

R = TypeVar("R", contravariant=True)


class Reader(Protocol[R]):
    """A ChunkReader for one kind of requests."""

    def ask(self, request: R, /) -> None: ...
    def answers(self) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Readers:
    """Implements cdc.ports.chunk_reader.ChunkReader. `keys` reads one scan at a time."""

    source: Reader[Request]
    keys: Reader[KeyPage]

    def ask(self, request: Request | KeyPage) -> None:
        if isinstance(request, KeyPage):
            self.keys.ask(request)
        else:
            self.source.ask(request)

    def answers(self) -> list[Answer]:
        return [*self.source.answers(), *self.keys.answers()]

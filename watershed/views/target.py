"""The port through which a view writes its target: the store of a sink's kind, or a topic."""

from collections.abc import Collection, Sequence
from typing import Protocol

from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Result


class Target(Protocol):
    """The parts of sinks.contract.Sink that a view needs, with its promises; but what `apply` writes must survive a
    kill -9 only when `make_readable` has returned."""

    def generation(self) -> int | None: ...

    def begin_generation(self, generation: int) -> None: ...

    def discard(self, table: TableId) -> None: ...

    def prepare(self, schema: TableSchema) -> None: ...

    def apply(self, changes: Sequence[Change]) -> list[Result]: ...

    def sweep(self, table: TableId, floor: int) -> int: ...

    def make_readable(self, tables: Collection[TableId]) -> None: ...

    def close(self) -> None: ...

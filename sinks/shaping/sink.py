"""A sink whose store holds rows in the shape of a mapping."""

from collections.abc import Callable, Collection, Iterator, Sequence

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Result, Sink, StoredRow
from sinks.schema_history import SchemaHistory
from sinks.shaping.table import TableShapes


def shaped(sink: Sink, section: StoredTables) -> Sink:
    """Returns the sink with the section's mapping applied; the sink itself if there is no mapping."""
    return ShapedSink(sink, section) if section.mapping else sink


def apply_shaped(
    shapes: TableShapes, apply: Callable[[Sequence[Change]], list[Result]], changes: Sequence[Change]
) -> list[Result]:
    """Applies changes in their shape and returns one result for each. A change that can't be decided yet is stale: the
    whole row follows with a greater version. One for which the condition or a computed column has no value is
    rejected.
    """
    shaped_changes = shapes.shaped(changes)
    applied = iter(apply([change for change in shaped_changes if isinstance(change, Change)]))
    return [next(applied) if isinstance(change, Change) else change for change in shaped_changes]


class ShapedSink:
    """Applies a mapping in front of another sink. Schemas and changes are the source's; the other sink gets them in the
    store's shape. Implements sinks.contract.Sink.
    """

    def __init__(self, sink: Sink, section: StoredTables) -> None:
        self.name = sink.name
        self._sink = sink
        self._shapes = TableShapes(sink.name, section)

    def generation(self) -> int | None:
        return self._sink.generation()

    def begin_generation(self, generation: int) -> None:
        self._sink.begin_generation(generation)

    def discard(self, table: TableId) -> None:
        self._sink.discard(table)

    def reset_versions(self, table: TableId) -> None:
        self._sink.reset_versions(table)

    def save_position(self, text: str, before: str | None) -> None:
        self._sink.save_position(text, before)

    def saved_position(self) -> str | None:
        return self._sink.saved_position()

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        shape = self._shapes.learn(SchemaHistory.of([*earlier, schema]))
        self._sink.prepare(shape.schema, shape.earlier)

    def attach(self, schema: TableSchema) -> None:
        self._sink.attach(self._shapes.learn(SchemaHistory.of([schema]), checks_excluded=False).schema)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return apply_shaped(self._shapes, self._sink.apply, changes)

    def sweep(self, table: TableId, floor: int) -> int:
        return self._sink.sweep(table, floor)

    def make_readable(self, tables: Collection[TableId]) -> None:
        self._sink.make_readable(tables)

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        return self._sink.rows(table)

    def close(self) -> None:
        self._sink.close()

"""The job's position, kept in the catalog with the snapshots that the tables had then (see sinks.contract.Sink.note).

A table that was rolled back to an earlier snapshot contradicts the note, because the snapshot that was noted is no
longer among the predecessors of the current one.
"""

import threading
from collections.abc import Callable, Iterable

from cdc.model.control import table_key, table_of_key
from cdc.model.events import TableId
from sinks.contract import lost_writes
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Engine
from sinks.warehouse.naming import Place


class Notes:
    """The note of one namespace."""

    def __init__(self, engine: Engine, namespace: str, place: Callable[[TableId], Place]) -> None:
        self._engine = engine
        self._namespace = (namespace,)
        self._place = place
        self._state = threading.Lock()  # guards _written
        self._written: set[TableId] = set()  # since the last note
        self._verified: dict[str, tuple[str | None, int]] = {}  # table → its state, and the number that it agreed with

    def written(self, tables: Iterable[TableId]) -> None:
        """Records that the tables have new snapshots. Thread-safe."""
        with self._state:
            self._written.update(tables)

    def write(self, text: str, before: str | None) -> None:
        """Implements Sink.note."""
        held = self._engine.namespace_properties(self._namespace) or {}
        last = properties.note_of(held)
        if before is not None and (last is None or last.text not in (before, text)):
            raise lost_writes("the warehouse")
        with self._state:
            written, self._written = self._written, set()
        try:
            numbers = {} if last is None else dict(last.snapshots)
            numbers |= {table: self._kept(table, numbers.get(table)) for table in map(table_key, written)}
            for changed in properties.note_writes(properties.Note(text, numbers), held):
                self._engine.run(statements.set_namespace_properties(self._namespace, changed))
        except BaseException:
            self.written(written)
            raise

    def read(self) -> str | None:
        """Implements Sink.noted. Returns None if a table was rolled back since."""
        note = properties.note_of(self._engine.namespace_properties(self._namespace) or {})
        if note is None or any(self._is_rolled_back(*entry) for entry in note.snapshots.items()):
            return None
        return note.text

    def _is_rolled_back(self, table: str, number: int) -> bool:
        """Returns False for a table that does not exist: then the store holds no generation."""
        rows = self._place(table_of_key(table)).rows
        state = self._engine.state(rows)
        if self._verified.get(table) == (state, number) or self._engine.table_properties(rows) is None:
            return False
        if self._newest(table, number) is None:
            return True
        self._verified[table] = state, number
        return False

    def _kept(self, table: str, noted: int | None) -> int:
        newest = self._newest(table, noted)
        if newest is None:
            raise lost_writes(f"the warehouse's table {table}")
        return newest

    def _newest(self, table: str, noted: int | None) -> int | None:
        """Returns the sequence number of the table's current snapshot, 0 if it has none; None if the snapshot with the
        number `noted` is no predecessor of it. Snapshots that have expired are taken for predecessors.
        """
        newest = 0
        for snapshot in self._engine.history(self._place(table_of_key(table)).rows):
            newest = newest or snapshot.sequence_number
            if noted is None or snapshot.sequence_number == noted:
                return newest
            if snapshot.sequence_number < noted:
                return None
        return newest if newest or not noted else None

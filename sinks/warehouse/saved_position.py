"""The job's position, kept in the catalog with the snapshots that the tables had then (see
sinks.contract.Sink.save_position).

A table that was rolled back to an earlier snapshot contradicts the note, because the snapshot that was noted is no
longer among the predecessors of the current one.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from cdc.model.control import table_key, table_of_key
from cdc.model.events import TableId
from sinks.contract import lost_writes
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Engine, Snapshot
from sinks.warehouse.naming import TableLocation

SavedSnapshot = tuple[int, int]  # its sequence number and its id; _NONE: the table had none
_NONE: Final = (0, 0)


class Commits(NamedTuple):
    """Commits to a table, each directly after the one before."""

    before: SavedSnapshot  # the table's snapshot before the first
    after: SavedSnapshot  # after the last
    state: str | None  # see Engine.state, after the last; None: not known

    def and_then(self, later: "Commits | None") -> "Commits | None":
        """Returns these and later commits; None if there was another between."""
        return later and (Commits(self.before, later.after, later.state) if later.before == self.after else None)


def as_saved(snapshot: Snapshot | None) -> SavedSnapshot:
    return _NONE if snapshot is None else (snapshot.sequence_number, snapshot.id)


class SavedPosition:
    """The note of one namespace."""

    def __init__(self, engine: Engine, namespace: str, place: Callable[[TableId], TableLocation]) -> None:
        self._engine = engine
        self._namespace = (namespace,)
        self._place = place
        self._state = threading.Lock()  # guards _written
        self._written: dict[TableId, Commits | None] = {}  # since the last note; None: not only the sink's own
        # Table → its state, and the noted snapshot that it agreed with.
        self._verified: dict[str, tuple[str | None, SavedSnapshot]] = {}

    def written(self, tables: Iterable[TableId]) -> None:
        """Records that the tables have, or will have, new snapshots. Thread-safe."""
        with self._state:
            self._written.update(dict.fromkeys(tables))

    def committed(self, table: TableId, commits: Commits | None) -> None:
        """Records which commits made the new snapshots, so that the note needs no look at the table. Thread-safe."""
        with self._state:
            self._written[table] = commits

    def write(self, text: str, before: str | None) -> None:
        """Implements Sink.save_position."""
        held = self._engine.namespace_properties(self._namespace) or {}
        last = properties.note_of(held)
        if before is not None and (last is None or last.text not in (before, text)):
            raise lost_writes("the warehouse")
        with self._state:
            written, self._written = self._written, {}
        try:
            snapshots = {} if last is None else dict(last.snapshots)
            for table, commits in written.items():
                name = table_key(table)
                snapshots[name] = self._kept(name, snapshots.get(name), commits)
            for changed in properties.note_writes(properties.Note(text, snapshots), held):
                self._engine.run(statements.set_namespace_properties(self._namespace, changed))
        except BaseException:
            self.written(written)
            raise

    def read(self) -> str | None:
        """Implements Sink.saved_position. Returns None if a table was rolled back since."""
        note = properties.note_of(self._engine.namespace_properties(self._namespace) or {})
        if note is None or any(self._is_rolled_back(*entry) for entry in note.snapshots.items()):
            return None
        return note.text

    def _is_rolled_back(self, table: str, noted: SavedSnapshot) -> bool:
        """Returns False for a table that does not exist: then the store holds no generation."""
        rows = self._place(table_of_key(table)).rows
        state = self._engine.state(rows)
        if self._verified.get(table) == (state, noted) or self._engine.table_properties(rows) is None:
            return False
        if self._newest(table, noted) is None:
            return True
        self._verified[table] = state, noted
        return False

    def _kept(self, table: str, noted: SavedSnapshot | None, commits: Commits | None) -> SavedSnapshot:
        if commits is not None and noted == commits.before:
            if commits.state is not None:
                self._verified[table] = commits.state, commits.after
            return commits.after
        newest = self._newest(table, noted)
        if newest is None:
            raise lost_writes(f"the warehouse's table {table}")
        return newest

    def _newest(self, table: str, noted: SavedSnapshot | None) -> SavedSnapshot | None:
        """Returns the table's current snapshot; None if the noted one is not it, and no predecessor of it. Snapshots
        that have expired are taken for predecessors.
        """
        newest = _NONE
        for snapshot in self._engine.history(self._place(table_of_key(table)).rows):
            found = snapshot.sequence_number, snapshot.id
            newest = found if newest == _NONE else newest
            if noted is None or found == noted:
                return newest
            if snapshot.sequence_number <= noted[0]:  # also after a return to older metadata: numbers are used again
                return None
        return newest if newest != _NONE or noted in (None, _NONE) else None

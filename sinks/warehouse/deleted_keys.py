"""Keys of deleted rows and the versions at which they were deleted, beside each table that holds the source's rows.

A change of such a key that is older than its deletion must not bring the row back. Readers of the rows never see these.
"""

from collections.abc import Sequence

from sinks.warehouse import statements
from sinks.warehouse.engine import Engine
from sinks.warehouse.staging import Staged

Name = tuple[str, ...]


class DeletedKeys:
    """Remembers the highest version of each table, so that a batch of later changes need not read it. One for all
    mergers of a sink: a table is written by one of them at a time."""

    def __init__(self) -> None:
        self._highest: dict[Name, tuple[str | None, int]] = {}  # table → its state, and the highest version in it

    def highest(self, engine: Engine, table: Name) -> int:
        """0 for an empty table."""
        state = engine.state(table)
        known = self._highest.get(table)
        if known is None or known[0] != state or state is None:
            found = engine.query(statements.highest_version(table)).column(0)[0].as_py()
            known = self._highest[table] = (state, int(found))
        return known[1]

    def note(self, engine: Engine, table: Name, key: Sequence[str], staged: Sequence[Staged]) -> None:
        """Add the source's deletes. Committing them twice does no harm."""
        before = next(engine.history(table), None)
        highest = self.highest(engine, table)
        engine.run(statements.note_deleted(table, key))
        state, after = engine.state(table), next(engine.history(table), None)
        if after is not None and after.parent_id == (before.id if before else None) and state == engine.state(table):
            self._highest[table] = (state, max(highest, *(part.highest for part in staged)))

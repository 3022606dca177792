"""The keys of deleted rows, and the versions at which they were deleted, in a table beside each table of mode
`current`.

A change of such a key that is older than its deletion must not restore the row. Readers of the rows never see these
keys.
"""

from collections.abc import Callable, Sequence

from sinks.warehouse import statements
from sinks.warehouse.engine import Engine
from sinks.warehouse.staging import Staged

Name = tuple[str, ...]


class DeletedKeys:
    """The highest version in each table of deleted keys, so that a batch of later changes need not read the table. All
    mergers of a sink share one object; only one of them writes to a table at a time.
    """

    def __init__(self) -> None:
        self._highest: dict[Name, tuple[str | None, int]] = {}  # table → its state, and the highest version in it

    def highest(self, engine: Engine, table: Name) -> int:
        """Returns the highest version of a deletion in the table; 0 if it is empty."""
        state = engine.state(table)
        known = self._highest.get(table)
        if known is None or known[0] != state or state is None:
            found = engine.query(statements.highest_version(table)).column(0)[0].as_py()
            known = self._highest[table] = (state, int(found))
        return known[1]

    def note(self, engine: Engine, table: Name, staged: Sequence[Staged], add: Callable[[], None]) -> None:
        """Adds the deletes of the staged rows, by `add`. Committing them twice is harmless."""
        before = next(engine.history(table), None)
        highest = self.highest(engine, table)
        add()
        state, after = engine.state(table), next(engine.history(table), None)
        if after is not None and after.parent_id == (before.id if before else None) and state == engine.state(table):
            self._highest[table] = (state, max(highest, *(part.highest for part in staged)))

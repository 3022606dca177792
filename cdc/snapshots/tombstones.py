"""Tombstones behind sweeps, for consumers that ignore sweeps: the tables for which they are still to be written. Pure.

Rows that were swept below a floor, by a snapshot or by TRUNCATE, are still in the topic. A job without ranges looks
their keys up, and deletes those that the table does not have. The floor up to which that is done is recorded, so that a
restart finds what is due.
"""

from collections.abc import Mapping

from cdc.model.events import TableId, TableSchema
from cdc.snapshots.jobs import SnapshotJob
from cdc.snapshots.sweeps import Sweeps


class TombstoneJobs:
    """The tombstone jobs of all tables in one session."""

    def __init__(
        self, schemas: Mapping[TableId, TableSchema], sweeps: Sweeps, written: Mapping[TableId, int] | None
    ) -> None:
        """`written`: table → floor below which its tombstones are written; None: none are wanted."""
        self._schemas = schemas
        self._sweeps = sweeps
        self._begun = None if written is None else dict(written)  # floors of jobs that began, in any session
        self.due: dict[TableId, int] = {}  # floors of committed sweeps for which no job began
        self.jobs: dict[TableId, SnapshotJob] = {}
        self.on_committed()

    def on_committed(self) -> None:
        """The records that were produced so far are committed. A scan that begins earlier would miss rows that the
        sweep deletes."""
        if self._begun is not None:
            floors = {table: self._sweeps.floor(table) for table in self._schemas}
            self.due = {table: floor for table, floor in floors.items() if floor > self._begun.get(table, 0)}

    def begin(self) -> list[SnapshotJob]:
        """Begins the jobs that are due. Returns the jobs that they replace."""
        assert self._begun is not None
        replaced = [self.jobs[table] for table in self.due if table in self.jobs]
        self.jobs |= {
            table: SnapshotJob.of_tombstones(self._schemas[table], floor) for table, floor in self.due.items()
        }
        self._begun |= self.due
        self.due = {}
        return replaced

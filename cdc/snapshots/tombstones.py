"""Tombstones behind sweeps, for consumers that ignore sweeps: the tables for which they are still to be written. Pure.

Rows that were swept below a floor, by a snapshot or by TRUNCATE, are still in the topic. A job without ranges looks
their keys up, and deletes those that the table does not have. The floor up to which that is done is recorded, so that a
restart finds what is due.
"""

from collections.abc import Mapping

from cdc.model.events import TableId, TableSchema
from cdc.snapshots.jobs import Job
from cdc.snapshots.sweeps import Sweeps


class Tombstones:
    """The tombstone jobs of all tables in one session."""

    def __init__(
        self, schemas: Mapping[TableId, TableSchema], sweeps: Sweeps, written: Mapping[TableId, int] | None
    ) -> None:
        """`written`: table → floor below which its tombstones are written; None: none are wanted."""
        self._schemas = schemas
        self._sweeps = sweeps
        self._written = None if written is None else dict(written)
        self._sweeps_seen = self._sweeps_committed = -1
        self._floors: dict[TableId, int] = {}  # floors of committed sweeps
        self.on_committed()
        self.jobs: dict[TableId, Job] = {}

    @property
    def is_due(self) -> bool:
        """True if sweeps were committed since the last call of `begin`."""
        return self._written is not None and self._sweeps_seen != self._sweeps_committed

    def begin(self) -> list[Job] | None:
        """Begins the jobs that became due since the last call. Returns the jobs that they replace, or None if nothing
        became due."""
        if not self.is_due:
            return None
        assert self._written is not None
        self._sweeps_seen = self._sweeps_committed
        replaced: list[Job] = []
        for table, schema in self._schemas.items():
            floor = self._floors[table]
            job = self.jobs.get(table)
            if floor > self._written.get(table, 0) and (job is None or job.below != floor):
                if job is not None:
                    replaced.append(job)
                self.jobs[table] = Job.of_tombstones(schema, floor)
        return replaced

    def on_committed(self) -> None:
        """The records that were produced so far are committed. A scan that begins earlier would miss rows that the
        sweep deletes."""
        if self._sweeps_committed != self._sweeps.made:
            self._sweeps_committed = self._sweeps.made
            self._floors = {table: self._sweeps.floor(table) for table in self._schemas}

    def done(self, job: Job) -> None:
        if self._written is not None and job.below is not None:
            self._written[job.schema.table] = job.below

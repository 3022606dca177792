"""Tombstones behind sweeps, for consumers that know nothing of sweeps: which tables' are still to be written. Pure.

What was swept below a floor, by a snapshot or by TRUNCATE, still lies in the topic. A job without ranges looks those
keys up and deletes what the table has not. How far that is done is recorded when it is; a restart sees what is due.
"""

from collections.abc import Mapping

from cdc.model.events import TableId, TableSchema
from cdc.snapshots.jobs import Job
from cdc.snapshots.sweeps import Sweeps


class Tombstones:
    """Of all tables, for one session."""

    def __init__(
        self, schemas: Mapping[TableId, TableSchema], sweeps: Sweeps, written: Mapping[TableId, int] | None
    ) -> None:
        """`written`: the floor below which a table's are written; None: none are wanted."""
        self._schemas = schemas
        self._sweeps = sweeps
        self._written = None if written is None else dict(written)
        self._sweeps_seen = self._sweeps_committed = -1
        self._floors: dict[TableId, int] = {}  # of the sweeps that are committed, and all that was produced before them
        self.on_committed()
        self.jobs: dict[TableId, Job] = {}

    @property
    def is_due(self) -> bool:
        """Whether there may be more to do than `begin` said."""
        return self._written is not None and self._sweeps_seen != self._sweeps_committed

    def begin(self) -> list[Job] | None:
        """Jobs for what has become due since the last call; those that they replace. None: nothing has."""
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
        """What was produced can be read. A topic that is looked through earlier lacks rows that the sweep deletes."""
        if self._sweeps_committed != self._sweeps.made:
            self._sweeps_committed = self._sweeps.made
            self._floors = {table: self._sweeps.floor(table) for table in self._schemas}

    def done(self, job: Job) -> None:
        """This one has come to its end."""
        if self._written is not None and job.below is not None:
            self._written[job.schema.table] = job.below

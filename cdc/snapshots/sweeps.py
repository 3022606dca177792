"""Sweep records: rows of a table below a floor are gone. A table's floor never goes down. Pure."""

from collections.abc import Mapping

from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.records.topic_records import sweep_record


class Sweeps:
    """Makes them for one epoch."""

    def __init__(self, topics: Topics, epoch: int, floors: Mapping[TableId, int]) -> None:
        """`floors`: of each table's last sweep, whatever its epoch."""
        self.topics = topics
        self.epoch = epoch
        self._floors = dict(floors)
        self.made = 0  # sweeps, by this process

    def floor(self, table: TableId) -> int:
        """Of the table's last sweep, whatever its epoch; 0: there was none."""
        return self._floors.get(table, 0)

    def record(self, table: TableId, floor: int, commit_lsn: int) -> TopicRecord:
        """Rows with a version below `floor` are gone, for those who have applied the transaction that commits at
        `commit_lsn`. Where an earlier sweep's floor is higher this one repeats it: the topic keeps only the last."""
        self.made += 1
        self._floors[table] = max(floor, self._floors.get(table, 0))
        # A keepalive may name the commit record's own position before the transaction was sent, but none beyond.
        as_of_lsn = commit_lsn + 1
        return sweep_record(self.topics, table, self._floors[table], as_of_lsn, self.epoch)

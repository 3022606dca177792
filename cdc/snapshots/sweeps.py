"""Sweep records: the rows of a table below a floor are gone. A table's floor never goes down. Pure."""

from collections.abc import Mapping

from cdc.model.control import SweepRecord
from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics


class Sweeps:
    """Makes the sweep records of one epoch."""

    def __init__(self, topics: Topics, epoch: int, floors: Mapping[TableId, int]) -> None:
        """`floors`: the floor of each table's last sweep, in any epoch."""
        self.topics = topics
        self.epoch = epoch
        self._floors = dict(floors)

    def floor(self, table: TableId) -> int:
        """Returns the floor of the table's last sweep in any epoch; 0 if there was none."""
        return self._floors.get(table, 0)

    def record(self, table: TableId, floor: int, commit_lsn: int) -> TopicRecord:
        """Returns the record: rows with a version below `floor` are gone once the transaction that commits at
        `commit_lsn` is applied. If an earlier sweep has a higher floor it is repeated, because the topic keeps only the
        last record."""
        previous = self.floor(table)
        self._floors[table] = max(floor, previous)
        # A keepalive may report the position of the commit record before the transaction is sent, but none beyond it.
        as_of_lsn = commit_lsn + 1
        return SweepRecord.of(table, self._floors[table], as_of_lsn, self.epoch, previous).to(self.topics.control)

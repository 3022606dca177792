"""The reader of large values that updates left out of the log, on the same PostgreSQL."""

import random

from cdc.ports.row_reader import FoundRows, RowsRequest, Unreadable
from cdc.ports.stream import WhileWaiting
from cdc.ports.transaction_snapshot import TransactionSnapshot
from tests.simulation.snapshots.source import Source


class RowReader:
    """cdc.ports.row_reader.RowReader: does not answer now and then, reads only some of what is wanted, or nothing."""

    def __init__(self, chance: random.Random, source: Source) -> None:
        self._chance = chance
        self._source = source

    def read(self, wanted: RowsRequest, bytes_max: int, while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        assert bytes_max > 0
        while_waiting()
        table = wanted.schema.table.name
        if self._source.is_truncating(table) or self._chance.random() < 0.05:
            return None
        if self._chance.random() < 0.02:
            return Unreadable("no privilege")
        asked = wanted.rows[: self._chance.choice((1, 2, len(wanted.rows)))]
        return FoundRows(self.snapshot(), tuple(self._found(table, int(row.key[0]), wanted.columns) for row in asked))

    def snapshot(self) -> TransactionSnapshot:
        return self._source.snapshot()

    def _found(self, table: str, key: int, columns: tuple[str, ...]) -> tuple[bytes | None, ...] | None:
        row = self._source.visible[table].get(key)
        assert columns == ("big",)
        return None if row is None else (row.big.encode(),)

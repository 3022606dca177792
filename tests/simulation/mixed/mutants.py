"""The two defects that the mixture is for, put back: tests that mixed nothing had let them pass."""

from collections.abc import Sequence
from typing import Any

from cdc.ports import TopicRecord
from cdc.snapshots.memory import ChangeMemory
from tests.simulation.mixed.run import MeteredCapture, Parts


class TakesEmptyEventsForUnfinishedRows(MeteredCapture):
    """Values of rows that had holes go to the first records that are empty, or such rows: an empty payload is both a
    value that an event may have, and the sign of a row that is to be finished."""

    def _produce(self, records: Sequence[TopicRecord], *, is_begun: bool = False) -> None:
        finished = [record.value for record in records if _had_holes(record)]
        values = iter(finished)
        produced = [
            record._replace(value=next(values, b"")) if record.value == b"" or _had_holes(record) else record
            for record in records
        ]
        super()._produce(produced, is_begun=is_begun)


def _had_holes(record: TopicRecord) -> bool:
    return record.value is not None and (b'"filled":[' in record.value or b'"unchanged":[' in record.value)


class RecountingMemory(ChangeMemory):
    """Each transaction is remembered, and for each whose keys are forgotten those of all of them are counted again."""

    def __init__(self, keys_max: int) -> None:
        self._keys_limit = keys_max
        self._remembered: list[set[bytes]] = [set()]
        self._counted = 0
        super().__init__(keys_max)

    def begin(self, xid: int, next_seq: int) -> Any:
        super().begin(xid, next_seq)
        self._remembered.append(set())
        return True  # that each of its keys is to be told

    def touch(self, topic: str, key: bytes) -> None:
        super().touch(topic, key)
        self._remembered[-1].add(key)
        self._counted += 1
        if self._counted > self._keys_limit:
            for keys in self._remembered:
                keys.clear()
                self._counted = sum(len(others) for others in self._remembered)
                if self._counted <= self._keys_limit // 2:
                    break

    def clear(self) -> None:
        super().clear()
        self._remembered, self._counted = [set()], 0


MUTANTS: dict[str, Parts] = {
    "takes empty events for unfinished rows": Parts(capture=TakesEmptyEventsForUnfinishedRows),
    "recounts what it remembers of a backlog": Parts(memory=RecountingMemory),
}

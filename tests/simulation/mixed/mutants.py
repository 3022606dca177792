"""The two defects that the mixture is for, put back: tests that mixed nothing had let them pass."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cdc.capture.loop import ProgressRequest
from cdc.model.topic_record import TopicRecord
from cdc.snapshots.change_memory import ChangeMemory
from tests.simulation.mixed.process import TABLE_TOPICS, MeteredCapture, Parts


class TakesEmptyEventsForUnfinishedRows(MeteredCapture):
    """Values of rows that had holes go to the first records that are empty, or such rows: an empty payload is both a
    value that an event may have, and the sign of a row that is to be finished."""

    def _produce(self, records: Sequence[TopicRecord], *, is_begun: bool = False) -> None:
        had_holes = [self._had_holes(record) for record in records]
        values = iter([record.value for record, had in zip(records, had_holes, strict=True) if had])
        produced = [
            record._replace(value=next(values, b"")) if had or record.value == b"" else record
            for record, had in zip(records, had_holes, strict=True)
        ]
        super()._produce(produced, is_begun=is_begun)

    def _had_holes(self, record: TopicRecord) -> bool:
        """Whether the log lacks a value of the row."""
        if record.topic not in TABLE_TOPICS or record.value is None:
            return False
        value = json.loads(record.value)
        source = value["source"]
        if value["op"] not in "cu" or source["snapshot"] != "false":
            return False
        return self.simulated.source.op_at(source["commit_lsn"], source["tx_index"]).has_hole


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


class ClaimsWhatWasPaidSince(MeteredCapture):
    """What is owed is looked up when the end offsets are there: rows that were published since are above them."""

    def _awaits_cut(self, now: float) -> bool:  # noqa: ARG002
        return False  # while it does, nothing is published

    def _publish_progress(self, request: ProgressRequest, end_offsets: Any) -> None:
        super()._publish_progress(replace(request, owed=self._snapshots.owed), end_offsets)


MUTANTS: dict[str, Parts] = {
    "takes empty events for unfinished rows": Parts(capture=TakesEmptyEventsForUnfinishedRows),
    "claims rows that were published since": Parts(capture=ClaimsWhatWasPaidSince),
    "recounts what it remembers of a backlog": Parts(memory=RecountingMemory),
}

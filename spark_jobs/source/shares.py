"""Divides the partitions of a sink's batch among tasks. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_jobs.applied import Offsets
from spark_jobs.source.reading import Partition

# One task for this many waiting records: fewer records do not justify the cost of starting another task.
TASK_RECORDS_MIN: Final = 2_000


class Share(NamedTuple):
    """The part of a batch that one task reads."""

    starts: Mapping[Partition, int]  # offset of the first record
    ends: Mapping[Partition, int] | None  # offset after the last one; None: as far as time allows


def lag(starts: Offsets, ends: Offsets) -> int:
    """Returns the number of offsets between. Transaction markers have offsets too."""
    return sum(_lags(starts, ends).values())


def shares(starts: Offsets, ends: Offsets, task_count_max: int, *, with_ends: bool) -> list[Share]:
    """Divides the partitions of a batch among tasks, so that each has about the same number of records. Pure."""
    lags = _lags(starts, ends)
    if with_ends:
        lags = {partition: waiting for partition, waiting in lags.items() if waiting}
    count = max(1, min(task_count_max, len(lags), sum(lags.values()) // TASK_RECORDS_MIN))
    parts: list[dict[Partition, int]] = [{} for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]  # records, partitions, which part
    for partition, waiting in sorted(lags.items(), key=lambda entry: (-entry[1], entry[0])):
        records, partitions, number = min(loads)
        loads[number] = (records + waiting, partitions + 1, number)
        parts[number][partition] = _offset(starts, partition.topic, partition.number)
    return [
        Share(part, {partition: ends[partition.topic][partition.number] for partition in part} if with_ends else None)
        for part in parts
        if part
    ]


def _lags(starts: Offsets, ends: Offsets) -> dict[Partition, int]:
    return {
        Partition(topic, number): max(0, end - _offset(starts, topic, number))
        for topic, offsets in ends.items()
        for number, end in enumerate(offsets)
    }


def _offset(offsets: Offsets, topic: str, number: int) -> int:
    held = offsets.get(topic, ())
    return held[number] if number < len(held) else 0

"""Divides the partitions of a sink's batch among tasks. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_jobs.applied import Offsets
from spark_jobs.source.reading import Partition

# One task for this many waiting records: fewer records do not justify the cost of starting another task.
TASK_RECORDS_MIN: Final = 2_000


class Share(NamedTuple):
    """The part of a batch that one task reads."""

    start_offsets: Mapping[Partition, int]  # offset of the first record
    end_offsets: Mapping[Partition, int] | None  # offset after the last one; None: as far as time allows


def lag(start_offsets: Offsets, end_offsets: Offsets) -> int:
    """Returns the number of offsets between. Transaction markers have offsets too."""
    return sum(_lags(start_offsets, end_offsets).values())


def shares(start_offsets: Offsets, end_offsets: Offsets, task_count_max: int, *, is_bounded: bool) -> list[Share]:
    """Divides the partitions of a batch among tasks, so that each has about the same number of records. Pure."""
    lags = _lags(start_offsets, end_offsets)
    if is_bounded:
        lags = {partition: waiting for partition, waiting in lags.items() if waiting}
    count = max(1, min(task_count_max, len(lags), sum(lags.values()) // TASK_RECORDS_MIN))
    parts: list[dict[Partition, int]] = [{} for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]  # records, partitions, which part
    for partition, waiting in sorted(lags.items(), key=lambda entry: (-entry[1], entry[0])):
        records, partitions, number = min(loads)
        loads[number] = (records + waiting, partitions + 1, number)
        parts[number][partition] = _offset(start_offsets, partition.topic, partition.number)
    return [
        Share(
            part,
            {partition: end_offsets[partition.topic][partition.number] for partition in part} if is_bounded else None,
        )
        for part in parts
        if part
    ]


def _lags(start_offsets: Offsets, end_offsets: Offsets) -> dict[Partition, int]:
    return {
        Partition(topic, number): max(0, end - _offset(start_offsets, topic, number))
        for topic, offsets in end_offsets.items()
        for number, end in enumerate(offsets)
    }


def _offset(offsets: Offsets, topic: str, number: int) -> int:
    held = offsets.get(topic, ())
    return held[number] if number < len(held) else 0

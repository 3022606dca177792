"""A batch in pieces: what is held of it at once is bounded in bytes, however large its records are.

Spark collects what a job returns as a whole, and several times over, in one heap for all sinks. So a batch is listed
first: where each record lies, how large it is, and what it says, unless it is too large for that. Pieces with such
records are then read by jobs of their own, whose size is known. Pieces are in the order of the topics' partitions, so
that applying one after the other is no different from smaller batches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_jobs.applied import Offsets

# Of one job's result, unless a single record is larger: the JVM holds up to four copies of it.
READ_BYTES_MAX: Final = 16 * 1024 * 1024
_SIZE: Final = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"


class Span(NamedTuple):
    """Records of one partition."""

    topic: str
    partition: int
    start: int  # offset of the first one
    end: int  # behind the last one


def listed_bytes_max(bytes_max: int, begins: Offsets, ends: Offsets, records_max: int) -> int:
    """How large a record may be to be listed whole: `bytes_max` are enough for as many as lie between these offsets. A
    partition that `begins` doesn't have begins anywhere."""
    count = sum(sum(offsets) for offsets in ends.values()) - sum(
        min(begin, end)
        for topic, offsets in ends.items()
        for begin, end in zip(begins.get(topic, ()), offsets, strict=False)
    )
    return bytes_max // max(1, min(count, records_max))


def listed(batch: DataFrame, listed_max: int) -> pa.Table:
    """(key, value, topic, partition, offset, headers, size) of each record; larger ones without key and value."""
    whole = [f"CASE WHEN {_SIZE} <= {listed_max} THEN {name} END AS {name}" for name in ("key", "value")]
    return batch.selectExpr(*whole, "topic", "partition", "offset", "headers", f"{_SIZE} AS size").toArrow()


def pieces(
    listing: pa.Table, listed_max: int, bytes_max: int, read: Callable[[Sequence[Span]], pa.Table]
) -> Iterator[pa.Table]:
    """The listed records, none left out, at most `bytes_max` of them at once unless one is larger. `read`: what lies in
    these spans."""
    sizes: list[int] = listing.column("size").to_pylist()
    records = listing.drop_columns(["size"])
    for start, end in _cut(sizes, 0, len(sizes), bytes_max):
        parts = []
        for first, last in _cut(sizes, start, end, READ_BYTES_MAX):
            part = records.slice(first, last - first)
            is_whole = max(sizes[first:last]) <= listed_max
            parts.append(part if is_whole else read(spans(part)))
        yield pa.concat_tables(parts)


def spans(records: pa.Table) -> list[Span]:
    """Where records lie that are in the order of partitions and offsets."""
    found: list[Span] = []
    columns = [records.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    for topic, partition, offset in zip(*columns, strict=True):
        if found and found[-1][:2] == (topic, partition):
            found[-1] = found[-1]._replace(end=offset + 1)
        else:
            found.append(Span(topic, partition, offset, offset + 1))
    return found


def _cut(sizes: Sequence[int], start: int, end: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of parts of at most so many bytes, or of one."""
    first, held = start, 0
    for number in range(start, end):
        if held + sizes[number] > bytes_max and number > first:
            yield first, number
            first, held = number, 0
        held += sizes[number]
    if first < end:
        yield first, end

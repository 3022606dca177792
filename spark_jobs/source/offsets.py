"""Offsets of a stream in Spark's checkpoint, and how far a micro-batch reads. Pure.

    {"topic": "shop.public.orders", "history": "…", "incarnation": "…", "after": [0, 0], "swept": 0, "offsets": [17, 4]}

Spark compares the JSON text, so the fields have one order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from spark_jobs.source.errors import TopicChangedError


class StreamOffset(NamedTuple):
    """Offsets of one incarnation of a topic, one for each partition; later partitions begin at 0."""

    topic: str
    history: str
    incarnation: str
    after: tuple[int, int]  # only changes after this (epoch, LSN) are read
    swept: int  # the floor of the last sweep that the query has got; 0: none
    offsets: tuple[int, ...]

    def encoded(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Self:
        """Raises TopicChangedError for an offset of another source."""
        try:
            epoch, lsn = value["after"]
            return cls(
                str(value["topic"]),
                str(value["history"]),
                str(value["incarnation"]),
                (int(epoch), int(lsn)),
                int(value["swept"]),
                tuple(map(int, value["offsets"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TopicChangedError(
                'the checkpoint is not one of format("watershed")', "start the query with another checkpoint"
            ) from error

    def with_offsets(self, offsets: Sequence[int]) -> Self:
        return self._replace(offsets=tuple(offsets))

    def of(self, number: int) -> int:
        """The offset of a partition; a partition that was added later is read from its beginning."""
        return self.offsets[number] if number < len(self.offsets) else 0


def require_held(offset: StreamOffset, start_offsets: Sequence[int], end_offsets: Sequence[int]) -> None:
    """Raises TopicChangedError if the topic does not have all records from the offset on."""
    if len(offset.offsets) > len(end_offsets):
        raise TopicChangedError(
            f"topic {offset.topic} has {len(end_offsets)} partitions, the checkpoint {len(offset.offsets)}", _NEXT
        )
    for number, (start, end) in enumerate(zip(start_offsets, end_offsets, strict=True)):
        reached = offset.of(number)
        if reached > end:
            raise TopicChangedError(
                f"topic {offset.topic} has lost records: partition {number} ends at {end}, the checkpoint is at "
                f"{reached}",
                _NEXT,
            )
        if reached < start and number < len(offset.offsets):
            raise TopicChangedError(
                f"topic {offset.topic} has lost records: partition {number} begins at {start}, the checkpoint is at "
                f"{reached}",
                _NEXT,
            )


_NEXT = "start the query with a new checkpoint, and what it has written; `cdc status` says whether capture has a gap"


def limited(start_offsets: Sequence[int], end_offsets: Sequence[int], records_max: int | None) -> tuple[int, ...]:
    """Returns the offsets up to which a micro-batch of at most `records_max` records reads: each partition's share is
    that of its backlog, at least one record in all."""
    lags = [max(0, end - start) for start, end in zip(start_offsets, end_offsets, strict=True)]
    total = sum(lags)
    if records_max is None or total <= records_max:
        return tuple(map(max, start_offsets, end_offsets))
    shares = [lag * records_max // total for lag in lags]
    left = records_max - sum(shares)
    for number, lag in enumerate(lags):
        extra = min(left, lag - shares[number], 1)
        shares[number] += extra
        left -= extra
    return tuple(start + share for start, share in zip(start_offsets, shares, strict=True))

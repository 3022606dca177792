"""Which of librdkafka's options are not to be chosen. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

OptionValue = TypeVar("OptionValue")

OURS: Final = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",  # who reads what is not committed believes positions that were aborted
        "metadata.broker.list",
        "partitioner",  # another one takes keys away from their earlier records
        "request.required.acks",
        "transactional.id",  # what fences a second instance
    }
)
"""What exactly once, and the order for each key, rest on; and the brokers, which have a key of their own."""


def without_ours(options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
    """The options, if none is ours. Raises ValueError."""
    if taken := sorted(OURS.intersection(options)):
        raise ValueError(f"{', '.join(taken)} can't be chosen: take it out; what is promised rests on capture's own")
    return options

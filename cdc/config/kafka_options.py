"""The options of librdkafka that users can't set. Pure."""

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
        "isolation.level",  # a reader of uncommitted records would use positions that were aborted
        "metadata.broker.list",
        "partitioner",  # another one separates keys from their earlier records
        "request.required.acks",
        "transactional.id",  # fences a second instance
    }
)
"""Options on which exactly-once delivery and the order of a key depend, and the brokers, which have their own key."""


def without_ours(options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
    """Returns the options. Raises ValueError if one of them is set by capture itself."""
    if taken := sorted(OURS.intersection(options)):
        raise ValueError(
            f"{', '.join(taken)} can't be set: remove it; exactly-once delivery depends on the values that capture sets"
        )
    return options

"""The port through which a process in state GAP uses the topics."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import Signals
from cdc.records.control import PositionRecord


@dataclass(frozen=True, slots=True)
class KnownState:
    """What the state topic says."""

    position: PositionRecord | None  # None: there is none, or it is damaged
    signals_offset: int

    @property
    def epoch(self) -> int:
        return self.position.epoch if self.position else 0


class OpenSignals(Signals, Protocol):
    def close(self) -> None: ...


class GapTopics(Protocol):
    """The topics, as a process in state GAP uses them. Calls raise UnreachableError or ConnectionLost while the brokers
    are away, BrokerError when they refuse."""

    def known(self) -> KnownState: ...

    def answered(self) -> Collection[str]:
        """Ids of the signals that have an answer."""

    def signals(self, offset: int) -> OpenSignals: ...

    def answer(self, record: TopicRecord) -> None:
        """Write it, and return when the brokers have it. Fences nobody."""

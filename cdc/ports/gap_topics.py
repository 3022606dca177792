"""The port through which a process in state GAP reads and writes topics."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from cdc.model.control import PositionRecord
from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import Signals


@dataclass(frozen=True, slots=True)
class KnownState:
    """The position and the offset of the next signal, from the state topic."""

    position: PositionRecord | None  # None: missing or damaged
    signals_offset: int

    @property
    def epoch(self) -> int:
        return self.position.epoch if self.position else 0


class OpenSignals(Signals, Protocol):
    def close(self) -> None: ...


class GapTopics(Protocol):
    """The topics of a process in state GAP. Calls raise UnreachableError or ConnectionLost while the brokers are
    unreachable, BrokerError if they refuse."""

    def known(self) -> KnownState: ...

    def answered(self) -> Collection[str]:
        """Returns the ids of the signals that have an answer."""

    def signals(self, offset: int) -> OpenSignals: ...

    def answer(self, record: TopicRecord) -> None:
        """Writes the record and returns when the brokers acknowledged it. Fences no producer."""

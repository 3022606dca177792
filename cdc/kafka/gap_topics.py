"""The topics of a process in state GAP."""

from collections.abc import Collection
from dataclasses import dataclass

from cdc.config.settings import PipelineConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import SignalReader, deliver
from cdc.kafka.state_reader import read_state
from cdc.model.control import PositionRecord, SignalAnswer
from cdc.model.errors import GapError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics


@dataclass(frozen=True, slots=True)
class KnownState:
    """The position and the offset of the next signal, from the state topic."""

    position: PositionRecord | None  # None: missing or damaged
    signals_offset: int

    @property
    def epoch(self) -> int:
        return self.position.epoch if self.position else 0


class GapTopics:
    """Opens a client for each call; only the reader of signals stays open, until its user closes it. Calls raise
    UnreachableError or ConnectionLost while the brokers are unreachable, BrokerError if they refuse."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)

    def known(self) -> KnownState:
        try:
            state = read_state(self._config)
        except GapError:  # a damaged position record
            return KnownState(None, 0)
        return KnownState(state.position, state.signals_offset)

    def answered(self) -> Collection[str]:
        """Returns the ids of the signals that have an answer."""
        keys = read_latest(self._config.kafka, self._topics.control)
        return {key.removeprefix(SignalAnswer.KEY) for key in keys if key.startswith(SignalAnswer.KEY)}

    def signals(self, offset: int) -> SignalReader:
        return SignalReader(self._config.kafka, self._topics.signals, offset)

    def answer(self, record: TopicRecord) -> None:
        """Writes the record and returns when the brokers acknowledged it. Fences no producer."""
        deliver(self._config.kafka, record)

"""Implements cdc.ports.gap_topics.GapTopics: the topics of a process in state GAP."""

from collections.abc import Collection

from cdc.config.settings import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import SignalReader, deliver
from cdc.kafka.state_reader import read_state
from cdc.model.control import SIGNAL_KEY
from cdc.model.errors import GapError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.gap_topics import KnownState


class KafkaGapTopics:
    """Opens a client for each call; only the reader of signals stays open, until its user closes it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)

    def known(self) -> KnownState:
        try:
            state = read_state(self._config)
        except GapError:  # a damaged position record
            return KnownState(None, 0)
        return KnownState(state.position, state.signals_offset)

    def answered(self) -> Collection[str]:
        keys = read_latest(self._config.kafka, self._topics.control)
        return {key.removeprefix(SIGNAL_KEY) for key in keys if key.startswith(SIGNAL_KEY)}

    def signals(self, offset: int) -> SignalReader:
        return SignalReader(self._config.kafka, self._topics.signals, offset)

    def answer(self, record: TopicRecord) -> None:
        deliver(self._config.kafka, record)

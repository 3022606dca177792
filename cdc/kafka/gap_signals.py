"""The topics, as a process in state GAP uses them (cdc.ports.gap_topics.GapTopics)."""

from collections.abc import Collection

from cdc.config.settings import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import SignalReader, deliver
from cdc.kafka.state_reader import read_state
from cdc.model.errors import GapError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.gap_topics import KnownState
from cdc.records.control import SIGNAL_KEY


class KafkaGapTopics:
    """Holds nothing open but the signals that it gave away."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)

    def known(self) -> KnownState:
        """See cdc.ports.gap_topics.GapTopics."""
        try:
            state = read_state(self._config)
        except GapError:  # of a damaged position record
            return KnownState(None, 0)
        return KnownState(state.position, state.signals_offset)

    def answered(self) -> Collection[str]:
        """See cdc.ports.gap_topics.GapTopics."""
        keys = read_latest(self._config.kafka, self._topics.control)
        return {key.removeprefix(SIGNAL_KEY) for key in keys if key.startswith(SIGNAL_KEY)}

    def signals(self, offset: int) -> SignalReader:
        """See cdc.ports.gap_topics.GapTopics."""
        return SignalReader(self._config.kafka, self._topics.signals, offset)

    def answer(self, record: TopicRecord) -> None:
        """See cdc.ports.gap_topics.GapTopics."""
        deliver(self._config.kafka, record)

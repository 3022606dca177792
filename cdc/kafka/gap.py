"""The topics, as a process in state GAP uses them (cdc.gap.GapTopics)."""

from collections.abc import Collection

from cdc.config import Config
from cdc.control import SIGNAL_KEY, Topics
from cdc.errors import GapError
from cdc.gap import Known
from cdc.kafka.compacted import read_latest
from cdc.kafka.records import read_state
from cdc.kafka.signals import SignalReader, deliver
from cdc.ports import TopicRecord


class KafkaGapTopics:
    """Holds nothing open but the signals that it gave away."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)

    def known(self) -> Known:
        """See cdc.gap.GapTopics."""
        try:
            state = read_state(self._config)
        except GapError:  # of a damaged position record
            return Known(None, 0)
        return Known(state.position, state.signals_offset)

    def answered(self) -> Collection[str]:
        """See cdc.gap.GapTopics."""
        keys = read_latest(self._config.kafka, self._topics.control)
        return {key.removeprefix(SIGNAL_KEY) for key in keys if key.startswith(SIGNAL_KEY)}

    def signals(self, offset: int) -> SignalReader:
        """See cdc.gap.GapTopics."""
        return SignalReader(self._config.kafka, self._topics.signals, offset)

    def answer(self, record: TopicRecord) -> None:
        """See cdc.gap.GapTopics."""
        deliver(self._config.kafka, record)

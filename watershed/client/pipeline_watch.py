"""The position of capture and those of the sinks, from the state and progress topics, for clients that wait for
them."""

import threading
from contextlib import closing
from typing import Final, Self

from cdc.config.settings import PipelineConfig
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.state_reader import T, position_of, record_of, records_of
from cdc.model.control import PositionRecord, ProgressRecord
from cdc.model.errors import WatershedError
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from watershed.client.applied import Positions

POLL_S: Final = 0.02
CHECK_S: Final = 2.0  # interval of checks that the brokers answer


class PipelineWatch:
    """Follows both topics. For one thread; several threads use `FollowedPositions`."""

    def __init__(self, topics: Topics, tail: CompactedTail) -> None:
        """`tail`: of the state and progress topics."""
        self.tail = tail
        self._topics = topics

    @classmethod
    def of(cls, config: PipelineConfig) -> Self:
        topics = Topics(config.topics.prefix)
        return cls(topics, CompactedTail(config.kafka, [topics.state, topics.progress]))

    def read_to_end(self) -> None:
        """Reads the topics from their beginnings to their present ends. Raises WatershedError if capture has never run
        on the prefix, UnreachableError, BrokerError."""
        self.tail.read_to_end()

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        """Reads new records for `timeout_s` seconds. Returns their (topic, key). Raises BrokerError."""
        return self.tail.poll(timeout_s)

    def read_on(self) -> set[tuple[str, str]]:
        """Reads everything that is committed by now, thus the whole Kafka transactions of all records that were read
        before. Returns the new records' (topic, key). Raises UnreachableError, BrokerError."""
        return self.tail.read_to_end()

    def close(self) -> None:
        self.tail.close()

    # ---- contents

    def position(self) -> PositionRecord | None:
        """Returns the position. Raises GapError if it is damaged."""
        return position_of(self._topics.state, self.tail.latest[self._topics.state])

    def positions(self) -> Positions:
        """Returns what capture and sinks have published, as of what was read so far. Raises GapError as `position`."""
        return Positions(self.sinks(), self.position(), self.published(), self._topics.prefix)

    def published(self) -> ProgressRecord | None:
        return self.progress(ProgressRecord, ProgressRecord.KEY)

    def sinks(self) -> tuple[SinkRecord, ...]:
        """Returns the record of every sink and generation."""
        topic = self._topics.progress
        return records_of(SinkRecord, topic, self.tail.latest[topic])

    def state(self, kind: type[T], key: str) -> T | None:
        """Returns the record of this key of the state topic."""
        return record_of(kind, key, self._topics.state, self.tail.latest[self._topics.state])

    def progress(self, kind: type[T], key: str) -> T | None:
        """Returns the record of this key of the progress topic."""
        return record_of(kind, key, self._topics.progress, self.tail.latest[self._topics.progress])


class FollowedPositions:
    """Positions that a thread keeps up to date, from the first request on."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last = Positions()
        self._error: WatershedError | None = None
        self._answered = threading.Event()

    def last(self) -> Positions:
        """Returns the positions of a few milliseconds ago; waits only for the first ones. Raises WatershedError while
        the brokers are unreachable."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="positions of sinks", daemon=True)
                self._thread.start()
        self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._last

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._follow()
            except WatershedError as error:
                self._error = error
                self._answered.set()
            pause.wait(1.0)

    def _follow(self) -> None:
        """Follows the topics until something fails."""
        with closing(PipelineWatch.of(self._config)) as watch:
            watch.read_to_end()
            polls, is_new = 0, True
            while True:
                if is_new:
                    self._last, self._error = watch.positions(), None
                    self._answered.set()
                is_new = bool(watch.poll(POLL_S))
                polls += 1
                if polls % int(CHECK_S / POLL_S) == 0:
                    watch.tail.require_answer()

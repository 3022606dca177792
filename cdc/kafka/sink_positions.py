"""The published positions of sinks, for clients that wait for them."""

import threading
import time
from collections.abc import Callable
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import NEXT_REACHABLE
from cdc.kafka.compacted_tail import CompactedTail
from cdc.model.control import POSITION_KEY, PositionRecord, SinkRecord
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.topics import Topics

POLL_S: Final = 0.02
CHECK_S: Final = 2.0  # interval of checks that the brokers answer
READ_ON_S_MAX: Final = 30.0


class SinkPositions:
    """Follows the state and progress topics. For one thread; several threads use `FollowedPositions`."""

    def __init__(self, kafka: KafkaConfig, topics: Topics) -> None:
        self._topics = topics
        self._tail = CompactedTail(kafka, [topics.state, topics.progress])
        self._sinks: dict[str, SinkRecord] = {}
        self._position: PositionRecord | None = None

    def read_to_end(self) -> None:
        """Reads the topics to their ends. Raises WatershedError if capture has never run on the prefix,
        UnreachableError, BrokerError."""
        self._tail.read_to_end()
        self._take({(topic, key) for topic, values in self._tail.latest.items() for key in values})

    def poll(self, timeout_s: float) -> None:
        """Reads new records for `timeout_s` seconds. Raises WatershedError."""
        self._take(self._tail.poll(timeout_s))

    def read_on(self) -> None:
        """Read whatever is committed by now. Raises WatershedError, UnreachableError where no end is met."""
        self._tail.forget_end()
        deadline = time.monotonic() + READ_ON_S_MAX
        while True:
            self.poll(POLL_S)
            if self._tail.is_at_end:
                return
            if time.monotonic() > deadline:
                raise UnreachableError("Kafka: the end of the topics of state and progress was not met", NEXT_REACHABLE)

    def require_answer(self) -> None:
        self._tail.require_answer()

    @property
    def sinks(self) -> tuple[SinkRecord, ...]:
        return tuple(self._sinks.values())

    @property
    def position(self) -> PositionRecord | None:
        return self._position

    def state(self, key: str) -> bytes | None:
        """The value of another key of state."""
        return self._tail.latest[self._topics.state].get(key)

    def close(self) -> None:
        self._tail.close()

    def _take(self, changed: set[tuple[str, str]]) -> None:
        """Decodes the records that changed."""
        for topic, key in changed:
            value = self._tail.latest[topic].get(key)
            where = f"topic {topic}, key {key}"
            if topic == self._topics.progress and key.startswith("sink/"):
                if value is None:
                    self._sinks.pop(key, None)
                else:
                    self._sinks[key] = SinkRecord.decode(value, where)
            elif topic == self._topics.state and key == POSITION_KEY:
                self._position = None if value is None else PositionRecord.open(value, where)


class FollowedPositions:
    """Positions that a thread keeps up to date, from the first request on."""

    def __init__(self, make: Callable[[], SinkPositions]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: tuple[tuple[SinkRecord, ...], PositionRecord | None] = ((), None)
        self._error: WatershedError | None = None
        self._answered = threading.Event()

    def last(self) -> tuple[tuple[SinkRecord, ...], PositionRecord | None]:
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
        positions = self._make()
        try:
            positions.read_to_end()
            polls = 0
            while True:
                self._last, self._error = (positions.sinks, positions.position), None
                self._answered.set()
                positions.poll(POLL_S)
                polls += 1
                if polls % int(CHECK_S / POLL_S) == 0:
                    positions.require_answer()
        finally:
            positions.close()

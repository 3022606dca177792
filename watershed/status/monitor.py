"""Observes source, topics and bases of views, each in a background thread, so that none waits for another, and a
request for the status waits for no server.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from cdc.config.config_file import Config
from cdc.model.condition import Condition
from cdc.model.errors import WatershedError
from watershed.client.source_facts import SourceFacts
from watershed.status.compute import Moment, status_of
from watershed.status.facts import Reading, SourceReader, TopicFacts, TopicFactsReader, ViewReader
from watershed.status.history import ObservationHistory
from watershed.status.model import Status
from watershed.status.view_facts import ViewFacts

T = TypeVar("T")
INTERVAL_S: Final = 1.0
BASE_ANSWER_S_MAX: Final = 4.0  # for which one who waits for first answers waits for bases of views
# A server that hangs gives no answer at all; an answer that is older than this is none.
ANSWER_AGE_S_MAX: Final = 6.0
NOT_ASKED: Final = WatershedError("the first answer has not come yet", "try again in a moment")


class _Poll(Generic[T]):
    """Queries one server repeatedly in a thread of its own, and keeps the last answer."""

    def __init__(self, name: str, read: Callable[[], T], silence: WatershedError, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read = read
        self._silence = silence  # the error of a server that does not answer in time
        self._ended = threading.Event()
        self.answered = threading.Event()
        self._lock = threading.Lock()
        self._answer: T | None = None
        self._error: WatershedError | None = None
        self._at = float("-inf")
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self._ended.set()

    def last(self) -> tuple[T | None, WatershedError | None]:
        """The last answer, or the error."""
        with self._lock:
            if not self.answered.is_set():
                return None, NOT_ASKED
            if self._clock() - self._at > ANSWER_AGE_S_MAX:
                return None, self._error or self._silence
            return (None, self._error) if self._error is not None else (self._answer, None)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                answer, error = self._read(), None
            except WatershedError as failure:
                answer, error = None, failure
            with self._lock:
                self._answer, self._error, self._at = answer, error, self._clock()
            self.answered.set()
            self._ended.wait(INTERVAL_S)


class Monitor:
    """The status as of the last second. Its threads are daemons and hold nothing that capture or a sink waits for."""

    def __init__(
        self,
        config: Config,
        source: SourceReader,
        topics: TopicFactsReader,
        conditions: Callable[[], Sequence[Condition]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
        views: Sequence[ViewReader] = (),
    ) -> None:
        self._config = config
        self._clock = clock
        self._conditions = conditions
        self._source: _Poll[SourceFacts] = _Poll(
            "status of the source",
            source.read,
            WatershedError("PostgreSQL does not answer", "check source.dsn, and that the server is running"),
            clock,
        )
        self._topics: _Poll[TopicFacts] = _Poll(
            "status of the topics",
            topics.read,
            WatershedError("Kafka does not answer", "check kafka.bootstrap_servers, and that the brokers are running"),
            clock,
        )
        silence = WatershedError(
            "the base of the view does not answer", "check that it is running, and the url of the base's sink"
        )
        self._views: tuple[tuple[ViewReader, _Poll[Mapping[str, ViewFacts]]], ...] = tuple(
            (one, _Poll(f"status of {', '.join(one.views)}", one.read, silence, clock)) for one in views
        )
        self._close: tuple[tuple[_Poll[Any], Callable[[], None]], ...] = (
            (self._source, source.close),
            (self._topics, topics.close),
            *((poll, one.close) for one, poll in self._views),
        )
        self._history = ObservationHistory()
        self._lock = threading.Lock()

    def start(self) -> None:
        for poll, _ in self._close:
            poll.start()

    def await_answers(self, timeout_s: float) -> None:
        """Waits until source and brokers have answered once, or refused to; for bases of views only a short time."""
        begun = time.monotonic()
        for poll in (self._source, self._topics):
            poll.answered.wait(max(0.0, begun + timeout_s - time.monotonic()))
        for _, base in self._views:
            base.answered.wait(max(0.0, begun + min(timeout_s, BASE_ANSWER_S_MAX) - time.monotonic()))

    def close(self) -> None:
        """Releases connections once the threads are back from them; does not wait for one that hangs."""
        for poll, close in self._close:
            poll.end()
            if poll.thread.ident is not None:  # it was started
                poll.thread.join(INTERVAL_S)
            if not poll.thread.is_alive():
                close()

    def status(self) -> Status:
        """Returns the status without waiting for a server. May be called by several threads."""
        source, source_error = self._source.last()
        topics, topics_error = self._topics.last()
        reading = Reading(
            source=source,
            source_error=source_error,
            topics=topics or TopicFacts(),
            topics_error=topics_error,
            conditions=tuple(self._conditions()),
            views=self._view_facts(),
        )
        with self._lock:
            now = Moment(self._clock(), time.time_ns() // 1000)
            return status_of(self._config, reading, self._history, now)

    def _view_facts(self) -> dict[str, ViewFacts | WatershedError]:
        found: dict[str, ViewFacts | WatershedError] = {}
        for reader, poll in self._views:
            answer, error = poll.last()
            if error is not NOT_ASKED:
                found |= answer if answer is not None else dict.fromkeys(reader.views, error or NOT_ASKED)
        return found

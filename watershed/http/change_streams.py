"""A table's changes as server-sent events: the last ones, then each as it arrives.

A thread for each stream follows the topic, and ends when the client has left. It waits for its client, so a client
that reads slowly costs a bounded memory.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import TimeoutError as NotYetError
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog
from starlette.responses import Response, StreamingResponse

from cdc.config.config_file import Config
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.events import TableSchema
from cdc.model.topics import Topics
from watershed.http.answers import BusyError
from watershed.status.table_records import PublishedRecord, payload
from watershed.status.table_tail import TableTail

log = structlog.get_logger(__name__)

STREAMS_MAX: Final = 8
BEGIN_S_MAX: Final = 20.0
HEARTBEAT_S: Final = 15.0
POLL_S: Final = 0.5
POLLED_MAX: Final = 100  # records of one poll
QUEUED_MAX: Final = 4  # polls that wait for the client
QUEUED_KIBIBYTES_MAX: Final = 4_096  # of one stream in the consumer
LIVE: Final = ": each change as it arrives\n\n"  # behind the last changes; the console waits for it
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class FollowedTable(Protocol):
    """What is needed of watershed.status.table_tail.TableTail."""

    def begin(self, count: int) -> list[PublishedRecord]: ...
    def poll(self, wait_s: float, records_max: int = ...) -> list[PublishedRecord]: ...
    def require_answer(self) -> None: ...


Follow = Callable[[TableSchema, bytes | None], Any]
"""Opens what follows a table, or one key of it: a context manager of FollowedTable."""


def following(current: Callable[[], Config]) -> Follow:
    """Follows topics of the brokers."""

    @contextmanager
    def follow(schema: TableSchema, key: bytes | None) -> Iterator[FollowedTable]:
        config, wanted = current(), None if key is None else json.loads(key)

        def is_wanted(record: PublishedRecord) -> bool:
            return wanted is None or payload(record.key) == wanted

        settings = {"queued.max.messages.kbytes": QUEUED_KIBIBYTES_MAX}
        with closing(TopicReader(config.kafka, settings=settings)) as reader:
            topics = schema.topic, Topics(config.topics.prefix).control
            yield TableTail(reader, schema.table, topics, is_wanted, record_reader(config.kafka).plain)

    return follow


@dataclass(slots=True)
class _Stream:
    """Between the thread of a stream and its client."""

    loop: asyncio.AbstractEventLoop
    parts: "asyncio.Queue[list[PublishedRecord] | WatershedError]" = field(
        default_factory=lambda: asyncio.Queue(QUEUED_MAX)
    )
    has_ended: threading.Event = field(default_factory=threading.Event)

    def put(self, part: list[PublishedRecord] | WatershedError) -> None:
        """Called by the thread. Waits for the client while QUEUED_MAX parts wait for it."""
        waiting = asyncio.run_coroutine_threadsafe(self.parts.put(part), self.loop)
        while not self.has_ended.is_set():
            with suppress(NotYetError):
                waiting.result(POLL_S)
                return
        waiting.cancel()


class ChangeStreams:
    """The open streams of one server. Used by its event loop only."""

    def __init__(self, follow: Follow, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._follow = follow
        self._heartbeat_s = heartbeat_s
        self._open = 0  # threads that have not ended

    async def answer(self, schema: TableSchema, key: bytes | None, last: int, *, is_head: bool = False) -> Response:
        """Returns the answer once the last records are read. Raises WatershedError if they can't be, BusyError if too
        many streams are open."""
        if is_head:
            return Response(media_type="text/event-stream", headers=HEADERS)
        if self._open >= STREAMS_MAX:
            raise BusyError(f"{STREAMS_MAX} streams of changes are open already", "close one, or try again later")
        stream = _Stream(asyncio.get_running_loop())
        self._open += 1
        name = f"http: changes of {schema.table}"
        threading.Thread(target=self._run, args=(stream, schema, key, last), name=name, daemon=True).start()
        try:
            first = await asyncio.wait_for(stream.parts.get(), BEGIN_S_MAX)
        except TimeoutError:
            stream.has_ended.set()
            raise UnreachableError(
                f"topic {schema.topic} could not be read in {BEGIN_S_MAX:g} s", "check that the brokers answer"
            ) from None
        except BaseException:
            stream.has_ended.set()
            raise
        if isinstance(first, WatershedError):
            raise first
        return _Answer(stream, self._events(stream, first))

    def _run(self, stream: _Stream, schema: TableSchema, key: bytes | None, last: int) -> None:
        try:
            with self._follow(schema, key) as followed:
                stream.put(followed.begin(last))
                looked = time.monotonic()
                while not stream.has_ended.is_set():
                    if records := followed.poll(POLL_S, POLLED_MAX):
                        stream.put(records)
                    elif time.monotonic() - looked > self._heartbeat_s:
                        looked = time.monotonic()
                        followed.require_answer()
        except WatershedError as error:
            stream.put(error)
        except Exception as error:  # whatever it is, the client would wait for ever
            if not stream.loop.is_closed():
                log.exception("a stream of changes has failed", table=str(schema.table))
                stream.put(WatershedError(f"the stream has failed: {error}", "the log of the server has more"))
        finally:
            with suppress(RuntimeError):
                stream.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._open -= 1

    async def _events(self, stream: _Stream, part: list[PublishedRecord] | WatershedError) -> AsyncIterator[str]:
        yield ": the last changes\n\n"
        is_begun = False
        while not isinstance(part, WatershedError):
            for record in part:
                yield f"data: {json.dumps(record.as_json(), ensure_ascii=False)}\n\n"
            if not is_begun:
                yield LIVE
                is_begun = True
            while True:
                try:
                    part = await asyncio.wait_for(stream.parts.get(), self._heartbeat_s)
                    break
                except TimeoutError:
                    yield ": heartbeat\n\n"
        failure = {"error": part.message, "next": part.hint}
        yield f"event: error\ndata: {json.dumps(failure, ensure_ascii=False)}\n\n"


class _Answer(StreamingResponse):
    """Ends the stream's thread whatever ends the answer, also before its first byte."""

    def __init__(self, stream: _Stream, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._stream = stream

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._stream.has_ended.set()

"""Threads and tasks that wait, at the real routes of a Watershed process and at servers that misbehave."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from watershed_client import (
    AsyncClient,
    Client,
    HistoryChangedError,
    NotShownInTimeError,
    Position,
    RefusedError,
    SetupError,
    UnreachableError,
    Written,
)
from watershed_client.asking import Address, position_of

from cdc.config.http_settings import HttpConfig
from tests.support.http_server import free_port, running
from tests.support.status_facts import applied
from tests.support.waiting import eventually
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.server import http_server

TOKEN = "a-token-of-twenty-characters"
USERS = HttpConfig.model_validate({"users": {"app": {"role": "read", "token": TOKEN}}})

WaitFor = Callable[..., None]


def blocking(url: str, token: str | None = TOKEN) -> WaitFor:
    return Client(url, token).wait_for


def asynchronous(url: str, token: str | None = TOKEN) -> WaitFor:
    client = AsyncClient(url, token)
    return lambda *words, **options: asyncio.run(client.wait_for(*words, **options))


@pytest.fixture(params=[blocking, asynchronous], ids=["threads", "tasks"])
def connect(request: pytest.FixtureRequest) -> Callable[..., WaitFor]:
    found: Callable[..., WaitFor] = request.param
    return found


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture
def url(pipeline: Pipeline) -> Iterator[str]:
    with running(http_server(pipeline.application(), USERS)) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_wait_returns_when_the_store_shows_the_lsn(
    connect: Callable[..., WaitFor], pipeline: Pipeline, url: str
) -> None:
    wait_for = connect(url)
    wait_for("search", "0/1F4")
    wait_for(None, 500)
    wait_for(["search"], Written("0/1F4", 1), tables=["public.orders"], accepts_rejected=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for, "search", "0/3E8", timeout=30)
        before = pipeline.asked
        eventually(lambda: pipeline.asked > before + 5, 20.0, "the server waits")
        assert not waiting.done(), "never early"
        pipeline.records = (applied(1000),)
        waiting.result(20)


def test_a_wait_without_an_answer_says_why(connect: Callable[..., WaitFor], pipeline: Pipeline, url: str) -> None:
    wait_for = connect(url)
    with pytest.raises(NotShownInTimeError, match=r"LSN 0/3E8 was not shown .*: search: it is at 0/1F4"):
        wait_for("search", "0/3E8", timeout=0.1)
    with pytest.raises(RefusedError, match="no sink 'none' has published a position"):
        wait_for("none", "0/1")
    with pytest.raises(RefusedError, match="is beyond the end of the source's WAL"):
        wait_for("search", "0/FFFFFF")
    with pytest.raises(RefusedError, match="belongs to timeline 9"):
        wait_for("search", Written("0/1", 9))


def test_a_token_is_needed(connect: Callable[..., WaitFor], url: str) -> None:
    for token, says in ((None, "a token is needed"), ("another-token-of-20-chars", "the token is not known")):
        with pytest.raises(SetupError, match=says):
            connect(url, token)("search", "0/1")


def test_a_promotion_ends_a_wait_of_several_requests(
    connect: Callable[..., WaitFor], pipeline: Pipeline, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watershed_client.asking.REQUEST_S_MAX", 0.05)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect(url), "search", "0/3E8", timeout=30)
        before = pipeline.asked
        eventually(lambda: pipeline.asked > before + 10, 20.0, "it has asked more than once")
        # Everything is shown, but in another history.
        pipeline.position = pipeline.position.model_copy(update={"epoch": pipeline.position.epoch + 1})
        pipeline.records = (applied(1000, epoch=pipeline.position.epoch),)
        with pytest.raises(HistoryChangedError):
            waiting.result(20)


def test_many_threads_and_tasks_wait_at_once_with_one_client(
    pipeline: Pipeline, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the server lets wait at once."""
    monkeypatch.setattr("watershed.http.waits.WAITING_MAX", 5)
    client, tasks = Client(url, TOKEN), AsyncClient(url, TOKEN)

    async def all_tasks() -> None:
        await asyncio.gather(*(tasks.wait_for("search", "0/3E8", 30) for _ in range(20)))

    with ThreadPoolExecutor(21) as pool:
        waiting = [pool.submit(client.wait_for, "search", "0/3E8", 30) for _ in range(20)]
        waiting.append(pool.submit(lambda: asyncio.run(all_tasks())))
        before = pipeline.asked
        eventually(lambda: pipeline.asked > before + 20, 20.0, "some of them wait")
        assert not any(one.done() for one in waiting)
        pipeline.records = (applied(1000),)
        for one in waiting:
            one.result(30)


def test_a_task_that_is_cancelled_leaves_nothing_behind(pipeline: Pipeline, url: str) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(AsyncClient(url, TOKEN).wait_for("search", "0/3E8", 30))
        while pipeline.asked < 5:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


# ---- servers that misbehave


@contextmanager
def answering(*answers: bytes | None) -> Iterator[str]:
    """A server that gives each connection the next answer, and the last one to all that follow; None: it closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                request = b""
                while b"\r\n\r\n" not in request:
                    part = connection.recv(65_536)
                    if not part:
                        break
                    request += part
                answer = left.pop(0) if len(left) > 1 else left[0]
                if answer is not None:
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def answer(code: int, body: str, *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n{body}".encode()


SHOWN = '{"is_shown": true, "lsn": "0/1F4", "sinks": ["search"]}'
LATE = '{"error": "not yet", "next": "wait", "epoch": 1}'
CHUNKED = (
    "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"
    f"{len(SHOWN[:9]):x}\r\n{SHOWN[:9]}\r\n{len(SHOWN[9:]):x}\r\n{SHOWN[9:]}\r\n0\r\n\r\n"
).encode()


@pytest.mark.parametrize(
    "answers",
    [
        [answer(200, SHOWN)],
        [CHUNKED],
        [answer(504, LATE), None, answer(504, LATE), answer(200, SHOWN)],
        [answer(429, '{"error": "too many", "next": "later"}'), answer(200, SHOWN)],
        [answer(504, LATE), answer(502, "<html>Bad gateway</html>"), answer(200, SHOWN)],
    ],
)
def test_a_wait_goes_on_where_that_is_safe(connect: Callable[..., WaitFor], answers: list[bytes | None]) -> None:
    with answering(*answers) as url:
        connect(url)("search", "0/1F4", timeout=20)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([None], UnreachableError),
        ([answer(200, SHOWN, length=500)], UnreachableError),
        ([b"SSH-2.0-OpenSSH\r\n"], UnreachableError),
        ([answer(200, "<html>Please log in</html>")], SetupError),
        ([answer(200, "")], SetupError),
        ([answer(302, "")], SetupError),
        ([answer(503, "")], UnreachableError),
    ],
)
def test_nothing_else_is_taken_for_an_answer(
    connect: Callable[..., WaitFor], answers: list[bytes | None], error: type[Exception]
) -> None:
    with answering(*answers) as url, pytest.raises(error):
        connect(url)("search", "0/1F4", timeout=20)


def test_a_server_that_is_away_is_waited_for(connect: Callable[..., WaitFor], pipeline: Pipeline) -> None:
    port = free_port()
    wait_for = connect(f"http://127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port}: .*(refused|call failed)"):
        wait_for("search", "0/1F4", timeout=0.3)
    assert time.monotonic() - began < 5.0
    with ThreadPoolExecutor(1) as pool:
        waiting: Any = pool.submit(wait_for, "search", "0/1F4", timeout=30)
        with running(http_server(pipeline.application(), USERS), port):
            waiting.result(30)


def positions_of(url: str, token: str | None = TOKEN) -> list[Position]:
    return [Client(url, token).position(), asyncio.run(AsyncClient(url, token).position())]


def test_the_position_of_all_stores_is_told(pipeline: Pipeline, url: str) -> None:
    pipeline.records = (applied(0x500, applied_since_us=3_000_000), applied(0x400, sink="cache", dead_letters=2))
    for found in positions_of(url):
        assert (found.lsn, found.epoch, found.since, found.is_complete) == ("0/400", 1, None, False)
        assert [(store.sink, store.lsn, store.since, store.dead_letters) for store in found.stores] == [
            ("cache", "0/400", None, 2),
            ("search", "0/500", 3.0, 0),
        ]


def test_a_position_that_nobody_tells_is_an_error(url: str) -> None:
    for client in (Client(f"http://127.0.0.1:{free_port()}"), Client(url, None)):
        with pytest.raises((UnreachableError, SetupError)):
            client.position()
    with pytest.raises(SetupError, match="has /v1/position"):
        position_of(Address("http://shop", None), 200, b"{}")

"""Clients that send half a request, or read no answer: the server answers others, and ends their connections."""

import socket
import threading
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.http_settings import HttpConfig
from tests.support.http_server import HttpServer, running
from tests.support.waiting import eventually
from watershed.http import connections
from watershed.http import server as server_module
from watershed.http.server import http_server

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LARGE_BYTES = 50_000_000  # more than buffers of sockets take


class Held:
    """What requests for /held wait for."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.begun = 0

    def answer(self, _: Request) -> Response:
        self.begun += 1
        self.end.wait(20.0)
        return Response("held")


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.end.set()


@pytest.fixture
def server(held: Held, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_S", 1)

    async def healthz(_: Request) -> Response:
        return Response("alive")

    async def large(_: Request) -> Response:
        return Response(b"x" * LARGE_BYTES)

    async def body(request: Request) -> Response:
        return Response(str(len(await request.body())))

    routes = [Route("/healthz", healthz), Route("/held", held.answer), Route("/large", large)]
    app = Starlette(routes=[*routes, Route("/body", body, methods=["POST"])])
    with running(http_server(app, HttpConfig())) as port:
        yield HttpServer(port)
        held.end.set()


def opened(server: HttpServer, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 5.0)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Says whether the server has ended the connection. Reads what it has sent before."""
    connection.settimeout(0.05)
    try:
        while connection.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_health_is_answered_beside_more_half_requests_than_there_may_be_connections(server: HttpServer) -> None:
    halves = [opened(server, HALF) for _ in range(connections.CONNECTIONS_MAX + 10)]
    assert server.get("/healthz") == (200, "alive")
    eventually(lambda: is_closed(halves[0]), 5.0, "the oldest half request is closed")
    assert not is_closed(halves[-1])


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        HALF + b"\r\n" + HALF,
        b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf",
    ],
    ids=["nothing", "half a header", "half a second request", "half a body"],
)
def test_a_connection_does_not_wait_for_its_client_for_ever(
    server: HttpServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S_MAX", 0.5)
    connection = opened(server, sent)
    eventually(lambda: is_closed(connection), 5.0, "the connection is closed")


def test_an_answer_does_not_wait_for_ever_to_be_read(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S_MAX", 0.5)
    connection = opened(server, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def is_refused() -> bool:
        try:
            connection.sendall(b"\r")
        except ConnectionError:
            return True
        return False

    eventually(is_refused, 5.0, "the connection is closed")


def test_an_answer_that_is_read_slowly_is_read_whole(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S_MAX", 5.0)
    code, body = server.get("/large")
    assert (code, len(body)) == (200, LARGE_BYTES)


def test_a_request_in_work_is_not_closed_for_others(server: HttpServer, held: Held) -> None:
    work = opened(server, b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: held.begun == 1, 5.0, "the request is in work")
    halves = [opened(server, HALF) for _ in range(connections.PER_CLIENT_MAX + 10)]
    assert server.get("/healthz") == (200, "alive")
    held.end.set()
    work.settimeout(5.0)
    assert work.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert halves


def test_a_client_whose_requests_are_all_in_work_is_told_to_come_later(
    server: HttpServer, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PER_CLIENT_MAX", 3)
    work = [opened(server, b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
    eventually(lambda: held.begun == 3, 5.0, "the requests are in work")
    assert opened(server, b"").recv(100).startswith(b"HTTP/1.1 503")
    held.end.set()
    for one in work:
        one.close()
    eventually(lambda: server.get("/healthz") == (200, "alive"), 5.0, "there is room again")


def test_many_requests_on_one_connection_are_answered(server: HttpServer) -> None:
    whole = HALF + b"\r\n"
    connection = opened(server, whole * 3)
    connection.settimeout(2.0)
    found = b""
    while found.count(b"alive") < 3:
        found += connection.recv(1 << 16)
    connection.sendall(whole)
    while found.count(b"alive") < 4:
        found += connection.recv(1 << 16)

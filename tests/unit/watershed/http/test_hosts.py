"""Names under which the server is asked."""

import json
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.http_settings import HttpConfig
from tests.support.http_server import running
from watershed.http.hosts import KnownHosts
from watershed.http.server import http_server

EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize(
    ("listens", "host", "is_accepted"),
    [
        ("127.0.0.1", "localhost:8480", True),
        ("127.0.0.1", "LOCALHOST.:8480", True),
        ("127.0.0.1", "127.0.0.1:8480", True),
        ("127.0.0.1", "[::1]:8480", True),
        ("127.0.0.1", "", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example:8480", False),
        ("127.0.0.1", "192.0.2.7:8480", False),
        ("127.0.0.1", "watershed.internal", True),
        ("127.0.0.1", "other.watershed.internal", False),
        (EVERYWHERE, "10.1.2.3:8480", True),
        (EVERYWHERE, "[2001:db8::1]:8480", True),
        (EVERYWHERE, "evil.example:8480", False),
        (EVERYWHERE, "Watershed.Internal:8480", True),
        ("db-host", "db-host:8480", True),
    ],
)
def test_a_name_that_is_not_the_server_s_is_not_accepted(listens: str, host: str, is_accepted: bool) -> None:
    hosts = KnownHosts(HttpConfig(host=listens, insecure=True, names=("watershed.internal",)))
    assert hosts.accepts(host) == is_accepted


def asked(port: int, path: str, host: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=5.0)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_health_is_answered_under_every_name() -> None:
    def answer(_: Request) -> Response:
        return Response("answer")

    app = Starlette(routes=[Route("/healthz", answer), Route("/v1/status", answer)])
    with running(http_server(app, HttpConfig())) as port:
        assert asked(port, "/healthz", "evil.example") == (200, "answer")
        code, refused = asked(port, "/v1/status", "evil.example")
        assert (code, json.loads(refused)["error"]) == (421, "this server is not known as 'evil.example'")
        assert "http.names" in json.loads(refused)["next"]
        assert asked(port, "/v1/status", f"localhost:{port}") == (200, "answer")

"""JSON of another server: what it answers, and how what it does not is said."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cdc.model.errors import UnreachableError
from tests.support.http_server import free_port
from watershed.http.json_fetch import BYTES_MAX, ERROR_CHARS_MAX, fetch_json

ANSWERS: dict[str, tuple[int, bytes]] = {
    "/fine": (200, b'{"a": 1}'),
    "/away": (302, b""),
    "/refused": (401, json.dumps({"error": "the token is\nnot known", "next": "another"}).encode()),
    "/odd": (422, b"[]"),
    "/endless": (503, json.dumps({"error": "x" * 9_999}).encode()),
    "/html": (200, b"<html>"),
    "/deep": (200, b"[" * 99_999),
    "/large": (200, b'"' + b"x" * BYTES_MAX + b'"'),
}


class Handler(BaseHTTPRequestHandler):
    asked: dict[str, str]

    def do_GET(self) -> None:
        type(self).asked = dict(self.headers)
        code, body = ANSWERS[self.path.partition("?")[0]]
        self.send_response(code)
        self.send_header("Location", "/fine")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_answer_is_read_with_the_headers(address: str) -> None:
    assert fetch_json(f"{address}/fine?query=a", "check it", {"Authorization": "Bearer swordfish"}) == {"a": 1}
    assert Handler.asked["Authorization"] == "Bearer swordfish"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/away", "302 "),  # a redirect is not followed
        ("/refused", "401 the token is not known"),
        ("/odd", "422 "),
        ("/endless", f"503 {'x' * ERROR_CHARS_MAX}…"),
        ("/html", "Expecting value"),
        ("/deep", ""),
        ("/large", "its answer has more than 1,000,000 bytes"),
    ],
)
def test_what_is_no_answer_is_said_in_one_sentence(address: str, path: str, said: str) -> None:
    with pytest.raises(UnreachableError) as failed:
        fetch_json(f"{address}{path}?query=secret", "check it", {"Authorization": "Bearer swordfish"})
    message = failed.value.message
    assert message.startswith(f"{address}{path} can't be read: {said}") and "\n" not in message
    assert "secret" not in message and "swordfish" not in message
    assert failed.value.hint == "check it"


def test_a_server_that_is_away_is_said() -> None:
    with pytest.raises(UnreachableError, match=r"can't be read: .*refused"):
        fetch_json(f"http://127.0.0.1:{free_port()}/", "check it")

"""An HTTP server that gives the answers it was told to, in order, and keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def documents(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(action, document) of a bulk request."""
        lines = [json.loads(line) for line in self.body.splitlines()]
        return [(action["index"], document) for action, document in zip(lines[::2], lines[1::2], strict=True)]


@dataclass
class Scripted:
    url: str
    answers: list[tuple[int, object]] = field(default_factory=list)  # status and JSON; status 0 hangs up
    requests: list[Request] = field(default_factory=list)


@contextmanager
def scripted_server(answers: Sequence[tuple[int, object]]) -> Iterator[Scripted]:
    """The last answer is repeated."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.requests.append(Request(self.command, self.path, body, headers))
            status, content = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            if status == 0:
                self.close_connection = True
                return
            is_text = isinstance(content, str)  # as a proxy says it
            encoded = str(content).encode() if is_text else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if is_text else "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = Scripted(f"http://127.0.0.1:{server.server_address[1]}", list(answers))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()

"""A server on this machine that takes what is posted to it, as a collector does."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Posted:
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    code: int  # of the answer


class Receiver:
    """Answers with `code` while it is entered."""

    def __init__(self) -> None:
        self.code = 200
        self.location = ""  # to which an answer points
        self.answers_after_s = 0.0
        self.posted: list[Posted] = []
        self.requests = 0  # of any method
        self._ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                receiver.requests += 1
                self.send_error(405)

            def do_POST(self) -> None:
                receiver.requests += 1
                code = receiver.code
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._ended.wait(receiver.answers_after_s)
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.posted.append(Posted(self.path, headers, body, code))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def taken(self, path: str) -> list[Posted]:
        """What was posted to this path and taken."""
        return [one for one in self.posted if one.path == path and one.code < 300]

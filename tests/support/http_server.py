"""Sends requests to the HTTP server of a process under test, as a monitoring system does."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from tests.support.waiting import eventually
from watershed.http.server import listening_socket

RED_S_MAX = 10.0


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running(server: uvicorn.Server, port: int | None = None) -> Iterator[int]:
    """Runs it in a thread, and gives its port."""
    port = port or free_port()
    listener = listening_socket("127.0.0.1", port, "http.port")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    eventually(lambda: server.started, 10.0, "the server is started")
    try:
        yield port
    finally:
        server.force_exit = server.should_exit = True
        thread.join(10.0)


@dataclass(frozen=True)
class HttpServer:
    port: int

    def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
        """(status code, body)."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def json(self, path: str) -> Any:
        code, body = self.get(path)
        assert code == 200, body
        return json.loads(body)

    def reasons(self) -> list[str]:
        """Why it is not ready; nothing where it is. Not answering is a reason, too."""
        try:
            code, body = self.get("/readyz")
        except OSError as error:
            return [str(error)]
        found = json.loads(body)
        assert (code == 200) == found["is_ready"] == (not found["reasons"])
        assert all(reason["next"] for reason in found["reasons"]), "each has its next step"
        return [f"{reason['part']} {reason['name']}: {reason['message']}" for reason in found["reasons"]]

    def await_ready(self, deadline_s: float = 60.0) -> None:
        eventually(lambda: not self.reasons(), deadline_s, lambda: f"ready; the reasons: {self.reasons()}")

    def await_reason(self, text: str, deadline_s: float = RED_S_MAX) -> str:
        """Not ready, for a reason that has this text."""

        def found() -> str:
            return next((reason for reason in self.reasons() if text in reason), "")

        return eventually(found, deadline_s, lambda: f"not ready because of {text!r}; the reasons: {self.reasons()}")

    def await_sample(self, line: str, deadline_s: float = 60.0) -> str:
        """A scrape that has this line."""

        def scrape() -> str:
            text = self.get("/metrics")[1]
            return text if line in text else ""

        return eventually(scrape, deadline_s, lambda: f"{line} in the scrape:\n{self.get('/metrics')[1]}")

"""A Redis for tests that change its settings, kill it or empty it: the shared one belongs to others too. TLS."""

import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import make_certificates
from watershed.devstack.stack import Stack


@dataclass(frozen=True)
class OwnRedis:
    url: str
    stack: Stack  # to kill and restart `redis`


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    folder = Path(tempfile.mkdtemp(prefix="watershed-redis-"))
    try:
        with Stack(folder, temporary=True, given={}) as stack:
            yield OwnRedis(stack.start("redis").redis_url, stack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class TlsProxy:
    """TLS in front of a server, for clients with a certificate of our authority. The stack's Redis has no TLS."""

    def __init__(self, folder: Path, port: int) -> None:
        self._behind = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                accepted, _ = self._listening.accept()
                with suppress(ssl.SSLError):  # a client without a certificate
                    outside = self._context.wrap_socket(accepted, server_side=True)
                    inside = socket.create_connection(("127.0.0.1", self._behind))
                    for pair in ((outside, inside), (inside, outside)):
                        threading.Thread(target=_copy, args=pair, daemon=True).start()

    def close(self) -> None:
        self._listening.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65_536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """The certificates of an authority, a server and a client."""
    make_certificates(tmp_path, "server", "client")
    return tmp_path

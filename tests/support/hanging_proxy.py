"""A TCP proxy that can stop forwarding without closing anything, and damage what it forwards. It is a process of its
own, because libpq connects with the interpreter's lock held.

    python -m tests.support.hanging_proxy PORT

It prints its own port, then reads commands, one a line: hang, end, damage HEX HEX TIMES, damaged."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self


class HangingProxy:
    """Forwards connections to `127.0.0.1:port`. Use it in a with statement."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hanging_proxy", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def hang(self) -> None:
        """From now on nothing goes through the connections that there are; new ones work."""
        self._tell("hang")

    def end(self) -> None:
        """The server's ends of the connections that hang are closed, ours are not."""
        self._tell("end")

    def damage(self, sent: bytes, arrives: bytes, times: int = 1) -> None:
        """The next times that the server sends these bytes, others arrive."""
        self._tell(f"damage {sent.hex()} {arrives.hex()} {times}")

    @property
    def damaged(self) -> int:
        """How many times that has happened."""
        return int(self._tell("damaged"))

    def _tell(self, what: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        message = self._process.stdout.readline().removesuffix("\n")
        assert message == what or message.isdecimal()
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


class _Proxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._forwarding: set[asyncio.Task[None]] = set()
        self._to_server: list[asyncio.StreamWriter] = []
        self._to_clients: list[asyncio.StreamWriter] = []  # held: from Python 3.13 on, one that is collected is closed
        self._damage = b"", b""
        self._damage_left = self._damaged = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._to_server.append(server_writer)
        self._to_clients.append(writer)
        for source, to, change in ((reader, server_writer, bytes), (server_reader, writer, self._changed)):
            self._forwarding.add(asyncio.create_task(_forward(source, to, change)))

    def _changed(self, data: bytes) -> bytes:
        sent, arrives = self._damage
        count = min(data.count(sent), self._damage_left) if sent else 0
        self._damage_left -= count
        self._damaged += count
        return data.replace(sent, arrives, count)

    def obey(self, word: str) -> str:
        """The answer."""
        if word.startswith("damage "):
            _, sent, arrives, times = word.split()
            self._damage = bytes.fromhex(sent), bytes.fromhex(arrives)
            self._damage_left, self._damaged = int(times), 0
        elif word == "damaged":
            return str(self._damaged)
        elif word == "hang":
            for task in self._forwarding:
                task.cancel()
            self._forwarding = set()
        else:
            for writer in self._to_server:
                writer.close()
        return word


async def _forward(source: asyncio.StreamReader, to: asyncio.StreamWriter, change: Callable[[bytes], bytes]) -> None:
    while data := await source.read(1 << 16):
        to.write(change(data))
        await to.drain()
    to.close()


async def _main(port: int) -> None:
    proxy = _Proxy(port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(proxy.obey(line.strip()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))

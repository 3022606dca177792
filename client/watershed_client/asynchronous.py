"""Waits of tasks, on asyncio's own streams."""

import asyncio
import http.client
import io
import ssl
from collections.abc import Collection, Sequence
from typing import Any, cast

from watershed_client.asking import (
    ANSWER_S,
    TIMEOUT_S,
    Address,
    ConnectionFailure,
    Position,
    UnreachableError,
    Wait,
    position_of,
    position_path,
)
from watershed_client.blocking import CONNECT_S
from watershed_client.commits import Written

ANSWER_BYTES_MAX = 1024 * 1024


class AsyncClient:
    """Asks one Watershed process. It keeps no connection: any number of tasks may wait at once."""

    def __init__(self, url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """As watershed_client.Client."""
        self._address = Address(url, token)
        self._tls = tls

    async def wait_for(
        self,
        sink: str | Sequence[str] | None,
        lsn: str | int | Written,
        timeout: float = TIMEOUT_S,
        timeline: int | None = None,
        *,
        tables: Collection[str] = (),
        accepts_rejected: bool = False,
    ) -> None:
        """As watershed_client.Client.wait_for. A task that is cancelled closes its connection."""
        wait = Wait(self._address, sink, lsn, timeout, timeline, tables, accepts_rejected)
        while not wait.is_shown:
            await self._ask(wait)
            if wait.pause_s:
                await asyncio.sleep(wait.pause_s)

    async def position(self) -> Position:
        """As watershed_client.Client.position."""
        try:
            code, body = await self._get(position_path(self._address), ANSWER_S)
        except ConnectionFailure as error:
            raise UnreachableError(
                f"{self._address.name}: {error}", "check the address, and that `cdc run` is running"
            ) from None
        return position_of(self._address, code, body)

    async def _ask(self, wait: Wait) -> None:
        path = wait.begin()
        try:
            code, body = await self._get(path, wait.answer_s)
        except ConnectionFailure as error:
            wait.failed(str(error), is_asked=error.is_asked)
            return
        wait.answer(code, body)

    async def _get(self, path: str, answer_s: float) -> tuple[int, bytes]:
        """Returns code and body of the answer. Raises ConnectionFailure."""
        address = self._address
        context = (self._tls or ssl.create_default_context()) if address.is_tls else None
        try:
            opening = asyncio.open_connection(address.host, address.port, ssl=context)
            reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise ConnectionFailure(str(error) or "no connection in time", is_asked=False) from None
        try:
            lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in address.headers.items())]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
            # The server closes the connection after its answer.
            content = await asyncio.wait_for(_read(reader), answer_s)
            return _parsed(content)
        except (OSError, TimeoutError, http.client.HTTPException) as error:
            why = f"the connection was lost: {error or type(error).__name__}"
            raise ConnectionFailure(why, is_asked=True) from None
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while part := await reader.read(65_536):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ConnectionError("the answer is too long")
    return b"".join(parts)


class _Content:
    """A socket whose other side has sent these bytes and closed."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _parsed(content: bytes) -> tuple[int, bytes]:
    """Returns code and body of an answer. Raises HTTPException for one that is not whole."""
    answer = http.client.HTTPResponse(cast("Any", _Content(content)), method="GET")
    answer.begin()
    return answer.status, answer.read()

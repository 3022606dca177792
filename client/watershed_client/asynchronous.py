"""Waits of tasks, on asyncio's own streams."""

import asyncio
import http.client
import io
import ssl
from collections.abc import Collection, Sequence
from typing import Any, cast

from watershed_client.asking import TIMEOUT_S, Address, Wait
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

    async def _ask(self, wait: Wait) -> None:
        path, address = wait.begin(), self._address
        context = (self._tls or ssl.create_default_context()) if address.is_tls else None
        try:
            opening = asyncio.open_connection(address.host, address.port, ssl=context)
            reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, TimeoutError) as error:
            wait.failed(str(error) or "no connection in time", is_asked=False)
            return
        try:
            lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in address.headers.items())]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
            # The server closes the connection after its answer.
            content = await asyncio.wait_for(_read(reader), wait.answer_s)
            code, body = _parsed(content)
        except (OSError, TimeoutError, http.client.HTTPException) as error:
            wait.failed(f"the connection was lost: {error or type(error).__name__}")
            return
        finally:
            writer.close()
        wait.answer(code, body)


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

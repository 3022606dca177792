"""Connections of the HTTP server: how many there may be, and for how long one may wait for its client.

A client that sends half a request, or reads no answer, costs a connection until its deadline. If there are too many
connections, the one that has waited longest for its client is closed, so that a new request (of an orchestrator, which
would restart the process) is still answered.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 200
# Of one address: more than all requests that may wait in the server at once (for stores, for dead letters).
PER_CLIENT_MAX: Final = 150
REQUEST_S_MAX: Final = 10.0  # from the first byte of a request, or the opening of the connection, to its end
ANSWER_S_MAX: Final = 30.0  # in which the client takes an answer
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n"
    b'{"error":"too many requests at once","next":"try again in a moment"}'
)


class Room:
    """The open connections of one server, in the order in which they began to wait for their clients. Used by the
    server's event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[BoundedProtocol, str] = {}  # connection → address of its client
        self._working: dict[BoundedProtocol, str] = {}

    def admit(self, connection: "BoundedProtocol", address: str) -> bool:
        """Adds a connection, and closes the one that has waited longest if there are too many. Returns False if all
        connections that could be closed have a request in work."""
        for limit, of in ((PER_CLIENT_MAX, address), (CONNECTIONS_MAX, None)):
            if self._count(of) >= limit:
                oldest = next(self._idle(of), None)
                if oldest is None:
                    return False
                oldest.give_up()
        self._waiting[connection] = address
        return True

    def wait(self, connection: "BoundedProtocol") -> None:
        """The connection waits for its client from now on."""
        if connection in self._working:
            self._waiting[connection] = self._working.pop(connection)

    def work(self, connection: "BoundedProtocol") -> None:
        """The connection has a whole request, which is in work."""
        if connection in self._waiting:
            self._working[connection] = self._waiting.pop(connection)

    def leave(self, connection: "BoundedProtocol") -> None:
        self._waiting.pop(connection, None)
        self._working.pop(connection, None)

    def _count(self, address: str | None) -> int:
        everyone = (*self._waiting.values(), *self._working.values())
        return len(everyone) if address is None else everyone.count(address)

    def _idle(self, address: str | None) -> "Iterator[BoundedProtocol]":
        return (one for one, of in self._waiting.items() if address in (None, of))


class BoundedProtocol(H11Protocol):
    """One connection, which is closed if its client lets it wait too long."""

    room: Room  # set by `bounded`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.room.admit(self, self.client[0] if self.client else ""):
            transport.write(_BUSY)
            transport.close()
            return
        self._expect(REQUEST_S_MAX)

    def data_received(self, data: bytes) -> None:
        is_new = self.cycle is None or self.cycle.response_complete
        if is_new and self._deadline is None:  # the first bytes of another request on this connection
            self._expect(REQUEST_S_MAX)
        super().data_received(data)
        self._note_work()

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:  # otherwise the client has yet to take the answer
            self._forget_deadline()
        self.room.wait(self)
        super().on_response_complete()  # sets the time for which an idle connection is kept; may begin the next request
        self._note_work()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect(ANSWER_S_MAX)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_deadline()
        self._note_work()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._expect(ANSWER_S_MAX)
        else:
            self.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self.room.leave(self)
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Closes the connection, whatever has not been sent."""
        self._forget_deadline()
        self.room.leave(self)
        self.transport.abort()  # close() would wait until the client has read everything

    def _expect(self, seconds: float) -> None:
        self._forget_deadline()
        self.room.wait(self)
        self._deadline = self.loop.call_later(seconds, self.give_up)

    def _note_work(self) -> None:
        """The next step is the server's if it has a whole request, and the client takes its answer."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self.flow.write_paused:
            return
        self._forget_deadline()
        self.room.work(self)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bounded() -> type[BoundedProtocol]:
    """Returns the protocol of one server's connections."""
    return type("Connection", (BoundedProtocol,), {"room": Room()})

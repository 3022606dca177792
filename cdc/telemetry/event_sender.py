"""Posts JSON events to an HTTP server, in order, from a thread of its own."""

import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final

import orjson

from cdc.telemetry.deliveries import Deliveries

QUEUE_MAX: Final = 256  # events
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024  # of theirs; one event may be larger
TIMEOUT_S: Final = 5.0
RETRY_S_FIRST: Final = 1.0
RETRY_S_MAX: Final = 30.0
# Answers that another attempt may change.
TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class NotTaken(Exception):  # noqa: N818
    """The server refuses this event for good."""


Post = Callable[[bytes], None]
"""Sends an event. Raises NotTaken, and OSError where another attempt may succeed."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows none: it would send a GET without the event, with the key, to another server."""


def http_post(url: str, headers: Mapping[str, str]) -> Post:
    """Returns what posts to this address."""
    opener = urllib.request.build_opener(_NoRedirects)

    def post(body: bytes) -> None:
        request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"})  # noqa: S310 - checked
        try:
            with opener.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            place = (error.headers.get("Location") or "").partition("?")[0] if error.code < 400 else ""
            reason = f"{url} answered {error.code} {error.reason}" + (f": its address is {place}" if place else "")
            if error.code in TEMPORARY:
                raise OSError(reason) from None
            raise NotTaken(reason) from None
        except (OSError, HTTPException) as error:
            raise OSError(f"{url}: {getattr(error, 'reason', error) or type(error).__name__}") from None

    return post


class EventSender:
    """Sends events in the order in which they were given. An event is tried again until the server takes or refuses it;
    while the queue is full, further ones are dropped."""

    def __init__(self, post: Post, deliveries: Deliveries, retry_s_first: float = RETRY_S_FIRST) -> None:
        self._post = post
        self._deliveries = deliveries
        self._retry_s_first = retry_s_first
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry events", daemon=True)
        self._thread.start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Takes an event, and returns at once."""
        body = orjson.dumps(event)
        with self._changed:
            is_over = self._waiting_bytes + len(body) > QUEUE_BYTES_MAX
            is_full = len(self._waiting) >= QUEUE_MAX or (is_over and bool(self._waiting))
            if not is_full:
                self._waiting.append(body)
                self._waiting_bytes += len(body)
                self._changed.notify()
        if is_full:
            self._deliveries.drop(1)

    def shutdown(self) -> None:
        """Sends what is waiting, each event once."""
        self._is_closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        pause_s = self._retry_s_first
        while (body := self._next()) is not None:
            try:
                self._post(body)
            except NotTaken as error:
                self._deliveries.on_failure(str(error), given_up=1)
                self._done()
            except OSError as error:
                is_last = self._is_closing.is_set()
                self._deliveries.on_failure(str(error), given_up=int(is_last))
                if is_last:
                    self._done()
                else:
                    self._is_closing.wait(pause_s)
                    pause_s = min(pause_s * 2, RETRY_S_MAX)
            except Exception as error:  # noqa: BLE001 the thread goes on; the message may have the key in it
                self._deliveries.on_failure(f"an event can't be sent: {type(error).__name__}", given_up=1)
                self._done()
            else:
                self._deliveries.on_success()
                self._done()
                pause_s = self._retry_s_first

    def _next(self) -> bytes | None:
        """Waits for the first event, which stays in the queue. Returns None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing.is_set())
            return self._waiting[0] if self._waiting else None

    def _done(self) -> None:
        with self._changed:
            self._waiting_bytes -= len(self._waiting.popleft())

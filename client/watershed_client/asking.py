"""A wait as a series of HTTP requests, without any I/O: what to ask next, and what an answer means.

An answer that comes too early is worse than none. So only an answer that says itself that the LSN is shown counts, not
the code 200 that a proxy may give; and a wait of several requests names the epoch of its first answer, so that the LSN
is not taken for one of another history. A request that is lost before an epoch is known ends the wait with an error.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from watershed_client.commits import Written

TIMEOUT_S: Final = 30.0
REQUEST_S_MAX: Final = 20.0  # of one request: proxies cut longer ones, often after a minute
ANSWER_S: Final = 5.0  # that an answer may take beyond the time for which the server waits
PAUSE_S: Final = 0.05  # before the first repetition
PAUSE_S_MAX: Final = 1.0


class WaitError(Exception):
    """A wait that has no answer, with the cause and the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; next: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class NotShownInTimeError(WaitError, TimeoutError):
    """The stores did not show the LSN within the timeout. The message says what is missing."""


class RefusedError(WaitError):
    """The question can't be answered: a sink or a table that does not exist, an LSN that the source has not reached,
    rows that a store has rejected."""


class HistoryChangedError(WaitError):
    """The LSN is of another history: the source was promoted, or a gap is healed. Changes may be missing."""


class UnreachableError(WaitError, ConnectionError):
    """Watershed, its brokers or its source do not answer."""


class SetupError(WaitError):
    """The address, the token or a parameter is wrong."""


class Address:
    """Where a Watershed process listens, with the token of a user."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises SetupError for a text that is no address."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.username:
            raise SetupError("the address is not http://HOST:PORT or https://HOST:PORT", "name a process of Watershed")
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.is_tls else 80)
        self.path = parts.path.rstrip("/")  # of a proxy
        self.name = parts.netloc
        if token is not None and not (token.isascii() and token.isprintable()):
            raise SetupError("the token has characters that a header can't carry", "take the token of http.users")
        self._token = token

    @property
    def headers(self) -> dict[str, str]:
        found = {"Host": self.name, "Accept": "application/json", "Connection": "close"}
        return found if self._token is None else {**found, "Authorization": f"Bearer {self._token}"}


class ConnectionFailure(Exception):  # noqa: N818 - never leaves this package
    """Raised for an answer that did not come. `is_asked`: the request may have reached the server."""

    def __init__(self, why: str, *, is_asked: bool) -> None:
        super().__init__(why)
        self.is_asked = is_asked


@dataclass(frozen=True)
class StorePosition:
    """How far one store is."""

    sink: str
    lsn: str | None  # up to which it shows all transactions; None: it shows none yet
    epoch: int | None
    since: float | None  # seconds since 1970, since it shows this LSN
    owed: Mapping[str, str]  # table → why rows up to the LSN may be missing
    dead_letters: int  # rows that the store rejected


@dataclass(frozen=True)
class Position:
    """The LSN up to which every store shows all transactions."""

    lsn: str | None  # None: a store shows none yet, or there is no store
    epoch: int | None  # to which it belongs: LSNs of different epochs can't be compared
    since: float | None  # seconds since 1970, since every store shows at least this LSN
    is_complete: bool  # no store owes rows below it, or has rejected any
    stores: tuple[StorePosition, ...]


def position_path(address: Address) -> str:
    return f"{address.path}/v1/position"


def position_of(address: Address, code: int, body: bytes) -> Position:
    """Returns what an answer says. Raises UnreachableError, SetupError."""
    found = _object(body)
    message, hint = str(found.get("error", "")), str(found.get("next", ""))
    if code in (502, 503, 504):
        raise UnreachableError(
            message or f"{address.name}: the answer is {code}, and not of Watershed", hint or "ask again later"
        )
    try:
        if code == 200:
            stores = tuple(
                StorePosition(
                    store["sink"],
                    store["lsn"],
                    store["epoch"],
                    store["since_unix_seconds"],
                    dict(store["owed"]),
                    store["dead_letters"],
                )
                for store in found["stores"]
            )
            return Position(found["lsn"], found["epoch"], found["since_unix_seconds"], found["is_complete"], stores)
    except (KeyError, TypeError):
        message = ""
    raise SetupError(
        message or f"the answer {code} is not one of Watershed",
        hint or "name a process of Watershed that has /v1/position",
    )


class Wait:
    """One wait: `begin` a request, then give it `answer` or `failed`, until `is_shown`."""

    def __init__(
        self,
        address: Address,
        sink: str | Sequence[str] | None,
        lsn: str | int | Written,
        timeout: float,
        timeline: int | None,
        tables: Collection[str],
        accepts_rejected: bool,
    ) -> None:
        """Raises SetupError for parameters that can't be sent."""
        if not timeout >= 0 or isinstance(tables, str):
            raise SetupError("timeout is a number of seconds, and tables a list", "correct the call")
        sinks = [] if sink is None else [sink] if isinstance(sink, str) else list(sink)
        if sink is not None and not sinks:
            raise SetupError("the list of sinks is empty", "name a sink, or None for every sink")
        if isinstance(lsn, Written):
            timeline = lsn.timeline if timeline is None else timeline
            lsn = lsn.lsn
        self._address = address
        self._deadline = time.monotonic() + timeout
        self._lsn = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}" if isinstance(lsn, int) else lsn
        self._parameters = [("lsn", self._lsn), *(("sink", name) for name in sinks)]
        self._parameters += [("table", name) for name in sorted(tables)]
        self._parameters += [("accept_rejected", "true")] if accepts_rejected else []
        self._parameters += [] if timeline is None else [("timeline", str(timeline))]
        self._sinks = frozenset(sinks)
        self._epoch: int | None = None
        self._asked_s = 0.0
        self._pause_s = PAUSE_S
        self.is_shown = False
        self.pause_s = 0.0  # before the next request
        self.answer_s = 0.0  # for which the answer to the next request is to be waited for

    def begin(self) -> str:
        """Returns the path of the next request."""
        self._asked_s = max(0.0, min(REQUEST_S_MAX, self._deadline - time.monotonic()))
        self.answer_s = self._asked_s + ANSWER_S
        epoch = [] if self._epoch is None else [("epoch", str(self._epoch))]
        query = urlencode([*self._parameters, ("timeout", f"{self._asked_s:.3f}"), *epoch], quote_via=quote, safe="/")
        return f"{self._address.path}/v1/wait?{query}"

    def answer(self, code: int, body: bytes) -> None:
        """Takes an answer. Raises WaitError unless the LSN is shown, or the question is to be asked again."""
        found = _object(body)
        self.pause_s = 0.0
        if code == 200 and found.get("is_shown") is True and self._is_about(found):
            self.is_shown = True
            return
        message, hint = str(found.get("error", "")), str(found.get("next", ""))
        match code:
            case 504 if message:
                epoch = found.get("epoch")
                self._epoch = epoch if isinstance(epoch, int) else self._epoch
                self._again(NotShownInTimeError(message, hint))
            case 429:  # so many wait that this wait has not begun
                self._pause(UnreachableError(message or "too many requests are waiting", hint or "wait again later"))
            case 409 if message:
                raise HistoryChangedError(message, hint)
            case 404 if message and "routes" not in hint:
                raise RefusedError(message, hint)
            case 502 | 503 | 504:  # its brokers or its source do not answer, or a proxy has lost it
                self.failed(message or f"the answer is {code}, and not of Watershed", hint)
            case _ if message:
                raise SetupError(message, hint)
            case _:
                raise SetupError(
                    f"the answer {code} is not one of Watershed", "name a process of Watershed that has /v1/wait"
                )

    def failed(self, why: str, hint: str = "", *, is_asked: bool = True) -> None:
        """Takes a failure of the connection. `is_asked`: the request may have reached the server. Raises
        UnreachableError unless the question is to be asked again."""
        hint = hint or "check the address, and that `cdc run` is running"
        error = UnreachableError(f"{self._address.name}: {why}", hint)
        if is_asked and self._epoch is None:
            raise error
        self._pause(error)

    def _is_about(self, found: dict[str, Any]) -> bool:
        """Says whether the answer is to this question."""
        sinks = found.get("sinks")
        return found.get("lsn") == self._lsn and isinstance(sinks, list) and self._sinks <= set(map(str, sinks))

    def _again(self, error: WaitError) -> None:
        if time.monotonic() >= self._deadline:
            raise error
        self._pause_s = PAUSE_S

    def _pause(self, error: WaitError) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise error
        self.pause_s = min(left_s, self._pause_s)
        self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

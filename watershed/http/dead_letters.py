"""Sinks' dead letters as the console shows them: a bounded number, and rows only where nobody else can read them.

A row is withheld where the configuration masks columns of its table. Row and key are withheld from users without the
role operate, and, by a server without users, if other machines can reach it; `cdc dlq show` prints them. A letter has
the row as it is in the source: columns and tables that the store does not hold are left out.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import anyio
from anyio.to_thread import run_sync

from cdc.config.config_file import Config
from cdc.model.errors import UnreachableError
from watershed.client.dead_letters import DeadLetter
from watershed.http.access import ANYONE, Caller
from watershed.http.hosts import is_local
from watershed.status.model import Node, Status

SHOWN_MAX: Final = 100  # of each sink
KEPT_S: Final = 5.0  # an answer serves all consoles for so long
WAITING_MAX: Final = 20  # requests, while the brokers do not answer
Why = Literal["", "masked", "remote", "role", "not kept", "not held"]


class ShownDeadLetter(Node):
    """One row that a store rejected."""

    sink: str
    table: str
    key: Mapping[str, Any] | None  # null: withheld as the row is
    reason: str
    version: int
    topic: str
    partition: int
    offset: int
    rejected_unix_seconds: float
    row: Mapping[str, Any] | None
    withheld: Why  # why there is no row


class SinkDeadLetters(Node):
    """The dead letters of one sink's serving generation: the last ones, and how many there are."""

    sink: str
    total: int
    letters: tuple[ShownDeadLetter, ...]


class DeadLetters(Node):
    sinks: tuple[SinkDeadLetters, ...]


class DeadLetterReader:
    """Reads the letters of sinks that have some. Called from any thread; one of them reads at a time."""

    def __init__(
        self,
        config: Config,
        read: Callable[[Sequence[str]], Sequence[DeadLetter]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, tuple[str, ...], Sequence[DeadLetter]] = (float("-inf"), (), ())
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is made in the server's event loop

    async def shown_to(self, status: Status, host: str, caller: Caller) -> DeadLetters:
        """Does what `shown` does, for one request at a time: while the brokers do not answer, all wait in one thread of
        the server's. Raises WatershedError also if too many are waiting."""
        if self._waiting >= WAITING_MAX:
            raise UnreachableError(f"{WAITING_MAX} requests are waiting already", "try again in a moment")
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        self._waiting += 1
        try:
            return await run_sync(self.shown, status, host, caller, limiter=self._limiter)
        finally:
            self._waiting -= 1

    def shown(self, status: Status, host: str, caller: Caller = ANYONE) -> DeadLetters:
        """Returns the letters. `host`: the request's, by which a page of another origin is recognised. Raises
        WatershedError if the brokers do not answer."""
        having = [sink for sink in status.sinks if sink.dead_letters and sink.sink in self._config.sinks]
        names = tuple(sink.sink for sink in having)
        with self._lock:
            at, known, dead_letters = self._known
            if known != names or self._clock() - at > KEPT_S:
                dead_letters = self._read(names) if names else ()
                self._known = (self._clock(), names, dead_letters)
        hidden = self._hidden(host, caller)
        return DeadLetters(
            sinks=tuple(self._of_sink(sink.sink, sink.generation, dead_letters, hidden) for sink in having)
        )

    def _hidden(self, host: str, caller: Caller) -> Why:
        """Returns why this caller sees no values at all; "" if it may see some."""
        if caller.has_users:
            return "" if caller.role == "operate" else "role"
        return "" if is_local(self._config.http, host) else "remote"

    def _of_sink(self, sink: str, generation: int, dead_letters: Sequence[DeadLetter], hidden: Why) -> SinkDeadLetters:
        own = [
            dead_letter
            for dead_letter in dead_letters
            if (dead_letter.sink, dead_letter.generation) == (sink, generation)
        ]
        own.sort(key=lambda one: -one.row.rejected_us)
        shown = tuple(self._shown(dead_letter, hidden) for dead_letter in own[:SHOWN_MAX])
        return SinkDeadLetters(sink=sink, total=len(own), letters=shown)

    def _shown(self, dead_letter: DeadLetter, hidden: Why) -> ShownDeadLetter:
        row = dead_letter.row
        is_held = self._config.sinks[dead_letter.sink].holds(row.table)
        withheld = self._withheld(dead_letter, hidden, is_held=is_held)
        return ShownDeadLetter(
            sink=dead_letter.sink,
            table=str(row.table),
            key=self._held(dead_letter, row.key) if is_held and not hidden else None,
            reason=row.reason,
            version=row.version,
            topic=row.topic,
            partition=row.partition,
            offset=row.offset,
            rejected_unix_seconds=row.rejected_us / 1_000_000,
            row=None if withheld or row.row is None else self._held(dead_letter, row.row),
            withheld=withheld,
        )

    def _withheld(self, dead_letter: DeadLetter, hidden: Why, *, is_held: bool) -> Why:
        if dead_letter.row.row is None:
            return "not kept"
        if not is_held:
            return "not held"
        if self._masked(dead_letter):
            return "masked"
        return hidden

    def _masked(self, dead_letter: DeadLetter) -> frozenset[str]:
        """Returns the masked columns of the letter's table."""
        table = dead_letter.row.table
        masks = (mask.column for mask in self._config.format_options.masks if mask.table == table)
        return frozenset((*masks, *self._config.sinks[dead_letter.sink].mapped(table)[1].mask.columns))

    def _held(self, dead_letter: DeadLetter, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of columns that leave the source, that the store holds, and that are not masked."""
        table, masked = dead_letter.row.table, self._masked(dead_letter)
        mapping = self._config.sinks[dead_letter.sink].mapped(table)[1]
        included = None if mapping.include is None else {*mapping.include, *dead_letter.row.key}
        return {
            name: value
            for name, value in values.items()
            if name not in masked
            and name not in mapping.exclude
            and (included is None or name in included)
            and self._config.source.columns.takes(table, name)
        }

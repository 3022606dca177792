"""Sinks' dead letters as the console shows them: a bounded number, and rows only where nobody else can read them.

The server asks nobody who they are. So a row is withheld where the configuration masks columns of its table, and by a
server that other machines can reach; `cdc dlq show` prints it.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from configuration.settings import Config
from monitoring.model import Node, Status
from monitoring.sink_letters import Letter

SHOWN_MAX: Final = 100  # of each sink
KEPT_S: Final = 5.0  # an answer serves all consoles for so long
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class ShownLetter(Node):
    """One row that a store rejected."""

    sink: str
    table: str
    key: Mapping[str, Any]
    reason: str
    version: int
    topic: str
    partition: int
    offset: int
    rejected_unix_seconds: float
    row: Mapping[str, Any] | None
    withheld: Literal["", "masked", "remote", "not kept"]  # why there is no row


class SinkLetters(Node):
    """The dead letters of one sink's serving generation: the last ones, and how many there are."""

    sink: str
    total: int
    letters: tuple[ShownLetter, ...]


class DeadLetters(Node):
    sinks: tuple[SinkLetters, ...]


class Letters:
    """Reads the letters of sinks that have some. Called from any thread; one of them reads at a time."""

    def __init__(
        self,
        config: Config,
        read: Callable[[Sequence[str]], Sequence[Letter]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, tuple[str, ...], Sequence[Letter]] = (float("-inf"), (), ())

    def shown(self, status: Status, host: str) -> DeadLetters:
        """Returns the letters. `host`: the request's, by which a page of another origin is recognised. Raises
        WatershedError if the brokers do not answer."""
        having = [sink for sink in status.sinks if sink.dead_letters and sink.sink in self._config.sinks]
        names = tuple(sink.sink for sink in having)
        with self._lock:
            at, known, letters = self._known
            if known != names or self._clock() - at > KEPT_S:
                letters = self._read(names) if names else ()
                self._known = (self._clock(), names, letters)
        is_local = is_loopback(self._config.http.host) and _name(host) in LOCAL_NAMES
        return DeadLetters(
            sinks=tuple(self._of_sink(sink.sink, sink.generation, letters, is_local=is_local) for sink in having)
        )

    def _of_sink(self, sink: str, generation: int, letters: Sequence[Letter], *, is_local: bool) -> SinkLetters:
        own = [letter for letter in letters if (letter.sink, letter.generation) == (sink, generation)]
        own.sort(key=lambda one: -one.row.rejected_us)
        shown = tuple(self._shown(letter, is_local=is_local) for letter in own[:SHOWN_MAX])
        return SinkLetters(sink=sink, total=len(own), letters=shown)

    def _shown(self, letter: Letter, *, is_local: bool) -> ShownLetter:
        row = letter.row
        withheld: Literal["", "masked", "remote", "not kept"] = ""
        if row.row is None:
            withheld = "not kept"
        elif self._is_masked(letter):
            withheld = "masked"
        elif not is_local:
            withheld = "remote"
        return ShownLetter(
            sink=letter.sink,
            table=str(row.table),
            key=row.key,
            reason=row.reason,
            version=row.version,
            topic=row.topic,
            partition=row.partition,
            offset=row.offset,
            rejected_unix_seconds=row.rejected_us / 1_000_000,
            row=None if withheld else row.row,
            withheld=withheld,
        )

    def _is_masked(self, letter: Letter) -> bool:
        table = letter.row.table
        if any(mask.table == table for mask in self._config.format_options.masks):
            return True
        return bool(self._config.sinks[letter.sink].mapped(table)[1].mask.columns)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name(host: str) -> str:
    """Returns the name or address of a Host header, without the port."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]

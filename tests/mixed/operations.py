"""A mixture of everything that capture has to follow, as plain descriptions that a simulated source and a real server
both execute: rows with large values, moved keys, deletes, TRUNCATE, altered tables, events from tables and messages.

An operation names what is wanted, not what is there: an update of a row that does not exist changes nothing. Every
value carries a marker, `~<owner> <number>~`, with a number that is used once: so a value that turns up in a topic of
another owner is seen there, whatever it is mixed with.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

PLAIN, MASKED, HEAVY, ALTERED = "plain", "masked", "heavy", "altered"
"""Tables (id, v, big). `big` is stored out of line; of MASKED it is published in part, of HEAVY it may be larger than
the topic takes, ALTERED has other columns that come and go."""

EventSource = Literal["outbox", "blobs", "message"]
EVENT_SOURCES: Final[tuple[EventSource, ...]] = ("outbox", "blobs", "message")
"""An outbox table with a payload of text, one with bytea, and logical messages."""

EVENT: Final = "event"  # the owner of what events say
HIDDEN: Final = "hidden"  # the owner of what a column holds that is not captured: it is in no topic
ROUTABLE, UNROUTABLE = "thing", "no topic!"
AGGREGATES: Final = 5
MASK_CHARS: Final = 30  # of MASKED.big
_MARKER = re.compile(rb"~([a-z]+) [0-9]+")


class Sizes(NamedTuple):
    """Characters of `big`."""

    usual: int
    too_large: int  # more than HEAVY's topic takes


@dataclass(frozen=True, slots=True)
class Put:
    """Insert the row, or update all of its columns."""

    table: str
    key: int
    v: str
    big: str | None


@dataclass(frozen=True, slots=True)
class Touch:
    """Update the row, and leave its large value alone."""

    table: str
    key: int
    v: str


@dataclass(frozen=True, slots=True)
class Move:
    """Give the row another key, if no row has that one; its large value stays."""

    table: str
    key: int
    to: int
    v: str


@dataclass(frozen=True, slots=True)
class Remove:
    table: str
    key: int


@dataclass(frozen=True, slots=True)
class Empty:
    """TRUNCATE."""

    table: str


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `payload`: the bytes that its record has to have; None: null."""

    id: str  # a UUID
    source: EventSource
    aggregate: int
    payload: bytes | None
    is_routable: bool = True  # else it is a dead letter

    @property
    def aggregate_type(self) -> str:
        return ROUTABLE if self.is_routable else UNROUTABLE


@dataclass(frozen=True, slots=True)
class Alter:
    """ALTER TABLE of ALTERED: a column that is added or dropped, or `n` with another type."""

    change: Literal["add", "drop", "retype"]
    number: int


Operation = Put | Touch | Move | Remove | Empty | Event | Alter


@dataclass(frozen=True, slots=True)
class Part:
    """Operations in a savepoint, which may be rolled back."""

    operations: tuple[Operation, ...]
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class Transaction:
    parts: tuple[Part, ...]
    is_committed: bool = True

    @property
    def kept(self) -> list[Operation]:
        """What it does, if it commits."""
        return [operation for part in self.parts if part.is_kept for operation in part.operations]


class Mixture:
    """One client's transactions, drawn from `chance`."""

    def __init__(
        self,
        chance: random.Random,
        sizes: Sizes,
        keys: Sequence[int],
        *,
        client: int = 0,
        tables: Sequence[str] = (PLAIN, MASKED, HEAVY),
    ) -> None:
        """Numbers of markers and events of two clients differ."""
        self._chance = chance
        self._sizes = sizes
        self._keys = keys
        self._tables = tables
        self._client = client
        self._number = client * 10_000_000
        self._place = tables[0], keys[0]  # of the last operation on a row

    def transaction(self) -> Transaction:
        """Of one to eight operations, parted by savepoints."""
        chance = self._chance
        if chance.random() < 0.1:
            return Transaction((Part((self._alteration(),)),))
        parts = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            operations = tuple(self.operation() for _ in range(chance.choice((1, 1, 2, 3))))
            parts.append(Part(operations, is_kept=chance.random() >= 0.15))
        return Transaction(tuple(parts), is_committed=chance.random() >= 0.1)

    def single(self, table: str) -> Transaction:
        """The smallest transaction, of which a backlog is made."""
        key = self._chance.choice(self._keys)
        return Transaction((Part((Put(table, key, self._marker(table), None),)),))

    def operation(self) -> Operation:
        chance = self._chance
        if chance.random() < 0.35:
            return self.event()
        if chance.random() < 0.6:  # else the same row again: what is done to it in one batch matters
            self._place = chance.choice(self._tables), chance.choice(self._keys)
        table, key = self._place
        kind = chance.random()
        if kind < 0.35:
            return Touch(table, key, self._marker(table))
        if kind < 0.7:
            return self.put(table, key)
        if kind < 0.82 and table != HEAVY:  # what is too large to be published where it moves to stays in two places
            return Move(table, key, chance.choice(self._keys), self._marker(table))
        if kind < 0.98:
            return Remove(table, key)
        return Empty(table)

    def put(self, table: str, key: int) -> Put:
        large = f"{self._marker(table)} " + "x" * self._sizes.usual
        kind = self._chance.random()
        if kind < 0.1:
            return Put(table, key, self._marker(table), None)
        if table == HEAVY and kind < 0.4:
            large += "y" * self._sizes.too_large
        return Put(table, key, self._marker(table), large)

    def event(self) -> Event:
        chance = self._chance
        source = chance.choice(EVENT_SOURCES)
        marker = self._marker(EVENT)
        payloads: dict[EventSource, tuple[bytes | None, ...]] = {
            "outbox": (None, b"", marker.encode(), f"{marker} Zoë \t\\ 漢".encode()),
            "blobs": (None, b"", b"\x00\xff\n" + marker.encode(), b"\x00"),
            "message": (None, b'""', f'{{"said": "{marker}"}}'.encode()),
        }
        return Event(
            f"{self._client:08x}-0000-4000-8000-{self._number:012x}",
            source,
            chance.randrange(AGGREGATES),
            chance.choice(payloads[source]),
            is_routable=chance.random() >= 0.1,
        )

    def _alteration(self) -> Operation:
        if ALTERED not in self._tables:
            return Empty(self._chance.choice(self._tables))
        self._number += 1
        return Alter(self._chance.choice(("add", "add", "drop", "drop", "retype")), self._number)

    def _marker(self, owner: str) -> str:
        self._number += 1
        return f"~{owner} {self._number}~"


def owners(content: bytes | None) -> set[str]:
    """Whose markers the bytes hold."""
    return {owner.decode() for owner in _MARKER.findall(content or b"")}

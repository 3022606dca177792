"""The generations that one store holds beside each other, one of which readers see.

A rebuild fills a slot of its own and then lets it serve. A store that is rebuilt in place has one set of keys, in which
a rebuild writes each row again under the guard (`in_place`); for it, `serve` ends the rebuild.
"""

from collections.abc import Collection
from typing import Final, Protocol

from cdc.model.events import TableId

FIRST: Final = ""  # the slot of a store that was never rebuilt


class Slots(Protocol):
    """The slots of one store. Each method raises SinkError if the store does not answer."""

    in_place: bool

    def serving(self) -> str:
        """Returns the slot that readers see; FIRST if the store holds nothing."""

    def others(self) -> dict[str, int | None]:
        """Returns all other slots in which the store holds something, with their generations; None for one that is
        incomplete.
        """

    def generation(self, slot: str) -> int | None:
        """Returns the generation in this slot, whatever shape its tables have."""

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        """Raises SinkError if the store certainly has no room for another generation of these tables; None: of all."""

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        """Removes the rows of these tables (None: of all) up to this version that the rebuild has not written, if the
        store is rebuilt in place and the rebuild has read everything up to it. Returns their number.
        """

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        """Lets readers see this slot, in one step for all its tables. `adopts`: the tables of the serving generation
        that the slot does not hold become tables of the slot's generation, as they are. Otherwise they stay with the
        former one. Idempotent."""

    def drop(self, slot: str) -> None:
        """Deletes the content of a slot that does not serve, except for what another generation has adopted.
        Idempotent."""

    def close(self) -> None:
        """Releases connections. Idempotent."""


def slot_of(generation: int) -> str:
    """Returns the slot in which a rebuild fills this generation."""
    return f"g{generation}"


def generation_of(slot: str) -> int:
    return int(slot.removeprefix("g"))

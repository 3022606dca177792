"""The port through which a view writes its target: the store of a sink's kind, or a topic; its generations; and the
moments at which it is written.

A view whose definition has changed is filled beside the rows that readers see, and takes their place in one step when
it is whole.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Protocol

from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Result
from sinks.slots import Slots, slot_of


class ViewTarget(Protocol):
    """The parts of sinks.contract.Sink that a view needs, with its promises; but what `apply` writes must survive a
    kill -9 only when `make_readable` has returned."""

    def generation(self) -> int | None: ...

    def begin_generation(self, generation: int) -> None: ...

    def discard(self, table: TableId) -> None: ...

    def prepare(self, schema: TableSchema) -> None: ...

    def apply(self, changes: Sequence[Change]) -> list[Result]: ...

    def sweep(self, table: TableId, floor: int) -> int: ...

    def make_readable(self, tables: Collection[TableId]) -> None: ...

    def close(self) -> None: ...


class Gathering:
    """Decides when the keys that wait are computed and written, and how many of them together. For most targets that is
    at once. Where each write costs as much as many rows do (a commit of a warehouse), keys are gathered for a while."""

    def __init__(self, keys_max: int, interval_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`keys_max`: of one write; `interval_s`: from the beginning of one write to that of the next."""
        self.keys_max = keys_max
        self._interval_s = interval_s
        self._now = now
        self._due_at = -math.inf

    def is_due(self) -> bool:
        """Says whether keys may be written now."""
        return self._now() >= self._due_at

    def begin(self, key_count: int) -> None:
        """Records that so many keys are written now. If more keys are waiting, the next write follows at once."""
        self._due_at = -math.inf if key_count >= self.keys_max else self._now() + self._interval_s


class TargetGenerations:
    """The generations of one target whose store can hold two of them. Methods raise SinkError for a store that does
    not answer."""

    def __init__(self, open_slots: Callable[[], Slots], open_slot: Callable[[str], ViewTarget]) -> None:
        """`open_slot`: opens the target of the generation in this slot, see sinks.slots."""
        self._open_slots = open_slots
        self._open_slot = open_slot

    def begin(self, generation: int) -> ViewTarget:
        """Opens an empty target for this generation. What was begun earlier and did not serve is deleted. Raises
        SinkError if the store has no room for a second generation, or other objects depend on the readers' table."""
        self.drop_others()
        with closing(self._open_slots()) as slots:
            slots.check_room()
        return self._open_slot(slot_of(generation))

    def resume(self, generation: int) -> ViewTarget | None:
        """Opens the target of a generation that was filled and does not serve; None if it no longer exists."""
        slot = slot_of(generation)
        with closing(self._open_slots()) as slots:
            if slots.others().get(slot) != generation:
                return None
        made = self._open_slot(slot)
        if made.generation() == generation:  # it has all of its tables
            return made
        made.close()
        return None

    def serve(self, generation: int) -> None:
        """Switches readers to this generation, and deletes the former one."""
        with closing(self._open_slots()) as slots:
            slots.serve(slot_of(generation))
        self.drop_others()

    def drop_others(self) -> None:
        """Deletes all generations that readers do not see."""
        with closing(self._open_slots()) as slots:
            for slot in slots.others():
                slots.drop(slot)

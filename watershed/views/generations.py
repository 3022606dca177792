"""The generations of a view's target. A view whose definition has changed is filled beside the rows that readers see,
and takes their place in one step when it is whole.
"""

from collections.abc import Callable
from contextlib import closing

from sinks.slots import Slots, slot_of
from watershed.views.target import Target


class TargetGenerations:
    """The generations of one target whose store can hold two of them. Methods raise SinkError for a store that does
    not answer."""

    def __init__(self, open_slots: Callable[[], Slots], open_slot: Callable[[str], Target]) -> None:
        """`open_slot`: opens the target of the generation in this slot, see sinks.slots."""
        self._open_slots = open_slots
        self._open_slot = open_slot

    def begin(self, generation: int) -> Target:
        """Opens an empty target for this generation. What was begun earlier and did not serve is deleted. Raises
        SinkError if the store has no room for a second generation, or other objects depend on the readers' table."""
        self.drop_others()
        with closing(self._open_slots()) as slots:
            slots.check_room()
        return self._open_slot(slot_of(generation))

    def resume(self, generation: int) -> Target | None:
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

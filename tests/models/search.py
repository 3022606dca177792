"""Goes through every state of a model, or wanders through a larger one."""

import marshal
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tests.models.chunks import Model, Step
from tests.models.states import DONE, State


@dataclass(frozen=True, slots=True)
class Found:
    """How the source and what was published came to differ, as short as possible."""

    steps: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        return "\n".join((*self.steps, self.what))


def shortest(model: Model, states_max: int = 3_000_000) -> Found | None:
    """Breadth first; None when there is nothing wrong within so many states."""
    came_from: dict[State, tuple[str, State] | None] = dict.fromkeys(model.beginnings())
    layer = list(came_from)
    while layer and len(came_from) < states_max:
        following: list[State] = []
        for state in layer:
            for message, after in model.steps(state):
                if after in came_from:
                    continue
                came_from[after] = message, state
                if after.stage != DONE:
                    following.append(after)
                elif (wrong := model.verdict(after)) is not None:
                    return Found(_path(came_from, after), wrong)
        layer = following
    return None


def _path(came_from: dict[State, tuple[str, State] | None], end: State) -> tuple[str, ...]:
    message: list[str] = []
    at = end
    while (step := came_from[at]) is not None:
        message.append(step[0])
        at = step[1]
    rows = "".join(name for name, key in zip("abcd", at.keys, strict=False) if key & 1)
    return (f"the source has {rows or 'no rows'}", *reversed(message))


SHARDS: Final = 256
SLOTS_FIRST: Final = 1 << 8  # of a shard
FULL: Final = 0.6
LOOK_EVERY: Final = 100  # states between two looks at the clock


class Seen:
    """A set of states as 64 bits of their BLAKE2 each: 13 to 27 bytes a state instead of hundreds, and no more while it
    grows, one shard after the other. That two of n states have the same, so that one is not gone through, has a chance
    of about n² / 2⁶⁵: 1 in 3,000 for a hundred million."""

    def __init__(self, shards: "list[array[int]] | None" = None) -> None:
        self._shards = [array("Q", bytes(8 * SLOTS_FIRST)) for _ in range(SHARDS)] if shards is None else shards
        self._counts = [len(slots) - slots.count(0) for slots in self._shards]
        self.count = sum(self._counts)

    def add(self, state: State) -> bool:
        """Whether it is new."""
        print_ = int.from_bytes(blake2b(marshal.dumps(tuple(state), 2), digest_size=8).digest(), "little") or 1
        shard = print_ % SHARDS
        slots = self._shards[shard]
        if not _put(slots, print_):
            return False
        self.count += 1
        self._counts[shard] += 1
        if self._counts[shard] > FULL * len(slots):
            self._shards[shard] = _grown(slots)
        return True

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            array("Q", [len(slots) for slots in self._shards]).tofile(file)
            for slots in self._shards:
                slots.tofile(file)

    @classmethod
    def load(cls, path: Path) -> "Seen":
        sizes = array("Q")
        shards = []
        with path.open("rb") as file:
            sizes.fromfile(file, SHARDS)
            for size in sizes:
                slots = array("Q")
                slots.fromfile(file, size)
                shards.append(slots)
        return cls(shards)


def _grown(slots: "array[int]") -> "array[int]":
    larger = array("Q", bytes(16 * len(slots)))
    for print_ in slots:
        if print_:
            _put(larger, print_)
    return larger


def _put(slots: "array[int]", print_: int) -> bool:
    at = print_ // SHARDS & len(slots) - 1
    while there := slots[at]:
        if there == print_:
            return False
        at = at + 1 & len(slots) - 1
    slots[at] = print_
    return True


@dataclass(slots=True)
class Search:
    """Depth first through all states of a model; it can be interrupted, and go on another day."""

    model: Model
    seen: Seen = field(default_factory=Seen)
    stack: list[State] = field(default_factory=list)
    ended: int = 0  # states in which the snapshot was done
    wrong: str | None = None

    @property
    def is_over(self) -> bool:
        return self.wrong is not None or not self.stack

    @classmethod
    def of(cls, model: Model) -> "Search":
        search = cls(model)
        for state in model.beginnings():
            search.seen.add(state)
            search.stack.append(state)
        return search

    def run(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Until it is over, or `goes_on` says no."""
        add, steps, stack, verdict = self.seen.add, self.model.steps, self.stack, self.model.verdict
        countdown = LOOK_EVERY
        while stack:
            countdown -= 1
            if not countdown:
                if not goes_on():
                    return
                countdown = LOOK_EVERY
            for _, after in steps(stack.pop()):
                if not add(after):
                    continue
                if after.stage != DONE:
                    stack.append(after)
                    continue
                self.ended += 1
                if (wrong := verdict(after)) is not None:
                    self.wrong = wrong
                    return

    def save(self, folder: Path) -> None:
        self.seen.save(folder / "seen")
        stack = [tuple(state) for state in self.stack]
        (folder / "stack").write_bytes(marshal.dumps((self.ended, stack)))

    @classmethod
    def load(cls, model: Model, folder: Path) -> "Search":
        ended, stack = marshal.loads((folder / "stack").read_bytes())  # noqa: S302 - written by `save`
        return cls(model, Seen.load(folder / "seen"), [State(*state) for state in stack], ended)


STEPS_MAX: Final = 600
PACES: Final = (0.05, 0.3, 1.0, 3.0)


def wander(model: Model, seed: int) -> tuple[str | None, tuple[str, ...]]:
    """One schedule by chance: what is wrong in the end, None if nothing is, and what happened. How often transactions
    begin, become visible, are received, is drawn for each schedule: slow commits are what is dangerous."""
    chance = random.Random(seed)
    paces = {kind: chance.choice(PACES) for kind in ("begin", "show", "consume", "read")}
    paces["fail"] = 0.02
    state = chance.choice(list(model.beginnings()))
    message: list[str] = []
    while state.stage != DONE and len(message) < STEPS_MAX:
        steps: dict[str, list[Step]] = {}
        for step in model.steps(state):
            steps.setdefault(_kind(state, step), []).append(step)
        kinds = list(steps)
        name, state = chance.choice(steps[chance.choices(kinds, [paces[kind] for kind in kinds])[0]])
        message.append(name)
    return (model.verdict(state) if state.stage == DONE else None), tuple(message)


def _kind(state: State, step: Step) -> str:
    message, after = step
    if after.transactions < state.transactions:
        return "begin"
    if after.crashes < state.crashes or after.forgets < state.forgets:
        return "fail"
    if message.startswith("becomes visible"):
        return "show"
    return "consume" if message.endswith("is received") or message.startswith("it is received") else "read"

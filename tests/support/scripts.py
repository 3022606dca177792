"""Scripts of steps, and their shrinking, for campaigns that put everything together from seeds."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """A rule's name, and the number from which it takes its choices. A rule that does not apply does nothing, so that
    any part of a script is a script."""

    rule: str
    number: int


def chosen(chance: random.Random, weights: Mapping[str, int], count: int) -> list[Step]:
    """So many steps, by the rules' weights."""
    rules = chance.choices([*weights], [*weights.values()], k=count)
    return [Step(rule, chance.randrange(1 << 16)) for rule in rules]


def shrunk(script: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Leaves out steps while the script still fails: halves first, then smaller parts, at last single steps."""
    script = [*script]
    size = max(1, len(script) // 2)
    while True:
        start, has_shrunk = 0, False
        while start < len(script):
            shorter = script[:start] + script[start + size :]
            if fails(shorter):
                script, has_shrunk = shorter, True
            else:
                start += size
        if size == 1 and not has_shrunk:
            return script
        size = max(1, size // 2)


def written(script: Sequence[Step]) -> str:
    return "\n".join(f"    {step.rule} {step.number}" for step in script)


def read(text: str) -> list[Step]:
    """What `written` returned."""
    return [Step(line.split()[0], int(line.split()[1])) for line in text.splitlines() if line.strip()]

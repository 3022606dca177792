"""Mutated inputs in their thousands, each held against what must hold."""

import random
from dataclasses import dataclass
from typing import Self

from tests.fuzz import target
from tests.fuzz.mutation import mutate

# Of so many inputs. Rows are most of what a server sends, and where the generated code is; a stream costs as much as
# twenty of the others.
TURN = 200
ROWS, LINES, MESSAGES = 60, 60, 79  # the rest are streams


@dataclass
class Counts:
    inputs: int = 0
    accepted: int = 0  # mutants that still mean something are as wanted as those that do not

    def __iadd__(self, other: Self) -> Self:
        self.inputs += other.inputs
        self.accepted += other.accepted
        return self


def run(rng: random.Random, count: int) -> Counts:
    """`count` mutants. Raises target.Finding, or whatever the code under test raises and should not."""
    tables, others = target.tables(), target.seeds().others
    pools = [(table, table.seeds.messages, table.seeds.lines) for table in tables]
    counts = Counts(count)
    for i in range(count):
        table, messages, lines = pools[int(rng.random() * len(pools))]
        kind = i % TURN
        if kind < ROWS:
            mutant = mutate(rng, messages[int(rng.random() * len(messages))], messages)
            accepted = target.check_row(table, mutant)
            if accepted and not kind % 4:
                target.check_paths(table, mutant)
        elif kind < ROWS + LINES:
            accepted = target.check_line(table, mutate(rng, lines[int(rng.random() * len(lines))], lines))
        elif kind < ROWS + LINES + MESSAGES:
            accepted = target.check_message(mutate(rng, others[int(rng.random() * len(others))], others))
        else:
            frames = target.stream_of(table, messages[int(rng.random() * len(messages))])
            at = int(rng.random() * len(frames))
            frames[at] = mutate(rng, frames[at], frames)
            accepted = target.check_stream(table, frames)
        counts.accepted += accepted
    return counts

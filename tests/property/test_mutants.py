"""A million mutants of what servers send: refused with a named error, or whole; never a crash, a hang, or memory
without bound. A longer run, and one that is guided by coverage: python -m tests.fuzz"""

import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cdc.formats.records import OutRecord, TableEncoder
from cdc.model.errors import ProtocolError
from tests.fuzz import campaign, target
from tests.fuzz.mutation import mutate

INPUTS = 1_000_000
# Peak of what one input allocates: the records that it may become, with what they are made of. Far below a length that
# lies (up to 4 GiB), far above what the interpreter keeps for itself.
PEAK_BYTES = 400_000
PEAK_GROWTH = 200


def test_a_million_mutants_are_refused_by_name_or_whole() -> None:
    counts = campaign.run(random.Random(20260131), INPUTS)
    assert counts.inputs == INPUTS
    assert 0.1 < counts.accepted / INPUTS < 0.9  # mutants that still mean something are as wanted


def test_no_mutant_allocates_more_than_it_can_mean() -> None:
    rng = random.Random(17)
    tables = target.tables()
    tracemalloc.start()
    try:
        for i in range(6_000):
            table = tables[i % len(tables)]
            seeds = (table.seeds.messages, table.seeds.lines, target.seeds().others)[i % 3]
            mutant = mutate(rng, rng.choice(seeds), seeds)
            check = (target.check_row, target.check_line, lambda _, m: target.check_message(m))[i % 3]
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            check(table, mutant)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak <= PEAK_BYTES + PEAK_GROWTH * len(mutant), (i, mutant[:40])
    finally:
        tracemalloc.stop()


def test_the_fuzz_target_takes_any_bytes() -> None:
    rng = random.Random(5)
    target.TestOneInput(b"")
    for table_number, table in enumerate(target.tables()):
        for message in table.seeds.messages[:3]:
            target.TestOneInput(bytes([table_number]) + message)
            target.TestOneInput(bytes([table_number]) + mutate(rng, message, table.seeds.messages))
    for _ in range(300):
        target.TestOneInput(rng.randbytes(rng.randrange(60)))


def test_the_seeds_are_of_every_kind_of_message() -> None:
    kinds = {message[:1] for message in target.seeds().others}
    kinds |= {message[:1] for table in target.tables() for message in table.seeds.messages}
    assert kinds >= {bytes([kind]) for kind in b"BCORYIUDTMA"}
    recorded = [table for table in target.tables() if target.check_row(table, table.seeds.messages[0])]
    assert len(recorded) == len(target.tables())


# Each rule can fail.


class Wrong(TableEncoder):
    """An encoder that makes the mistake it is given."""

    def __init__(self, mistake: Callable[[], Any]) -> None:
        self.mistake = mistake

    def encode(self, *_: Any, **__: Any) -> list[OutRecord]:
        made: list[OutRecord] = self.mistake()
        return made


def refuse(message: str, hint: str = "next") -> Any:
    raise ProtocolError(message, hint)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: [(b"{}", b"{", None)],
        lambda: [(b"{", b"{}", None)],
        lambda: [(b"{}", b'"\xff"', None)],
        lambda: [(b"{}", json.dumps("x" * 100_000).encode(), None)],
        lambda: refuse("somewhere something is wrong"),
        lambda: refuse(f"pgoutput message 'I' at {target.PLACE}, byte 9: x", ""),
    ],
)
def test_a_mistake_is_found(mistake: Callable[[], Any]) -> None:
    table = replace(target.tables()[0], encoder=Wrong(mistake))
    with pytest.raises(target.Finding):
        target.check_row(table, b"I")


def test_another_exception_is_not_taken_for_a_refusal() -> None:
    table = replace(target.tables()[0], encoder=Wrong(lambda: [][0]))
    with pytest.raises(IndexError):
        target.check_row(table, b"I")

"""A snapshot of single rows, by their record keys: those that are there are published, the others deleted."""

import pytest

from cdc.ports.chunk_reader import Chunk, Lookup
from cdc.snapshots import jobs
from tests.unit.cdc.snapshots.loops import Beside, deletes, key, rows, snapshot, states, wanted

OWES = "the snapshot that heals the gap"


def of_keys(*numbers: int) -> Beside:
    made = Beside(
        wanted(sweeps=False, keys=tuple(key(number).decode() for number in numbers), owes=OWES, request="epoch 2")
    )
    made.pass_barrier(snapshot(8))
    made.begin(snapshot(9))
    return made


def test_rows_of_the_keys_are_published_others_are_deleted_and_nothing_else_is_read() -> None:
    made = of_keys(1, 2, 3)
    assert made.engine.owed()
    chunk, lookup = made.asks()
    assert isinstance(chunk, Chunk) and isinstance(lookup, Lookup)
    assert (chunk.keys, lookup.keys) == ((("1",), ("2",), ("3",)), (key(1), key(2), key(3)))
    first = made.transaction(901, watermarks=[made.look_up(lookup, snapshot(10), 2)])
    assert (deletes(first), states(first)[-1].status, states(first)[-1].rows_estimated) == ([2], "running", 3)
    made.transaction(20, 3)  # updated behind the chunk's snapshot: its event is in the topic
    last = made.transaction(902, watermarks=[made.read(chunk, snapshot(11), 1, 3, is_end=True)])
    ended = states(last)[-1]
    assert (rows(last), ended.status, ended.rows, ended.deleted) == ([1], "done", 1, 1)
    assert (made.engine.owed(), made.engine.is_active) == ({}, False)


def test_a_statement_has_a_limited_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BATCH_KEYS_MAX", 2)
    made = of_keys(1, 2, 3)
    asked = made.asks()
    while more := made.asks():
        asked += more
    assert [request.keys for request in asked if isinstance(request, Chunk)] == [(("1",), ("2",)), (("3",),)]
    for request in asked:
        assert isinstance(request, Chunk)
        numbers = [int(text) for (text,) in request.keys or ()]
        made.transaction(901, watermarks=[made.read(request, snapshot(10), *numbers, is_end=True)])
    first, second = *made.asks(), *made.asks()
    assert isinstance(first, Lookup) and isinstance(second, Lookup)
    assert (first.keys, second.keys) == ((key(1), key(2)), (key(3),))


def test_what_was_published_before_a_restart_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BATCH_KEYS_MAX", 2)
    made = of_keys(1, 2, 3)
    chunk = made.asks()[0]
    record = states(made.transaction(901, watermarks=[made.read(chunk, snapshot(10), 1, 2, is_end=True)]))[-1]
    made = Beside(record)
    made.pass_barrier(snapshot(12))
    made.begin(snapshot(13))
    chunks = [request.keys for request in made.asks() if isinstance(request, Chunk)]
    assert chunks == [(("3",),)]
    assert made.engine.owed() == {record.table: f"{OWES} is running"}

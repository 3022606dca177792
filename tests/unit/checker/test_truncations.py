"""TRUNCATE has its place in the stream: among its transaction's row records, or where its sweep says."""

import pytest

from tests.checker.journal import Entry
from tests.checker.positions import Sweep
from tests.checker.records import changes_of
from tests.checker.truncations import Place, Truncations, find
from tests.unit.checker.made import Log, entry, truncate

T = "public.t"


def sweep(seq: int, commit_lsn: int, table: str = T, epoch: int = 1) -> Sweep:
    return Sweep(table, epoch << 48 | seq, commit_lsn + 1, epoch)


def found(log: Log, journal: list[Entry], *sweeps: Sweep) -> Truncations:
    return find(changes_of(log.records), journal, sweeps, epoch=1, begins=100)


@pytest.fixture
def log() -> Log:
    """Transactions 7 and 9 are published: seq 1 to 3, 5 and 6, and 8. Number 8 has no row record."""
    made = Log()
    made.change("c", 1, 200, 0, xid=7)
    made.delete(1, 200, 1, xid=7)
    made.change("c", 2, 200, 1, xid=7)
    made.seq += 1
    made.change("c", 3, 200, 3, xid=7)
    made.change("u", 3, 200, 4, xid=7)
    made.seq += 1
    made.change("c", 4, 400, 0, xid=9)
    return made


@pytest.fixture
def journal() -> list[Entry]:
    return [
        entry(1, "INSERT", None, 1, xid=7, lsn=110),
        entry(2, "UPDATE", 1, 2, xid=7, lsn=120),  # a delete and a create
        truncate(3, xid=7, lsn=130),
        entry(4, "INSERT", None, 3, xid=7, lsn=140),
        entry(5, "UPDATE", 3, 3, xid=7, lsn=150),
        truncate(6, xid=8, lsn=250),
        entry(7, "INSERT", None, 4, xid=9, lsn=350),
    ]


def test_each_is_where_its_transaction_has_it(log: Log, journal: list[Entry]) -> None:
    reported = found(log, journal, sweep(4, 200), sweep(7, 300))
    assert reported == Truncations([Place(T, 5), Place(T, 7)], frozenset({3, 6}), [])


@pytest.mark.parametrize(
    "wrong", [sweep(3, 200), sweep(5, 200), sweep(4, 199), sweep(4, 200, "public.u"), sweep(4, 200, epoch=2)]
)
def test_a_sweep_that_differs_from_the_place_among_row_records_is_seen(
    log: Log, journal: list[Entry], wrong: Sweep
) -> None:
    assert found(log, journal, wrong, sweep(7, 300)).lost == [
        "TRUNCATE of public.t in transaction 7 has no sweep between its changes"
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        sweep(6, 300),  # what 7 wrote last would survive: not a floor above all that is published
        sweep(8, 300),  # a store that has swept would take the next row for a replay
        sweep(7, 249),  # before the table was locked
        sweep(7, 350),  # when it was written to again
        sweep(7, 300, "public.u"),
        sweep(7, 300, epoch=2),
    ],
)
def test_one_without_row_records_needs_a_sweep_while_the_table_is_locked(
    log: Log, journal: list[Entry], wrong: Sweep
) -> None:
    reported = found(log, journal, sweep(4, 200), wrong)
    assert reported.lost == ["TRUNCATE of public.t in transaction 8 has no sweep"]
    assert reported.places == [Place(T, 5)]


def test_a_snapshot_that_ends_meanwhile_is_not_taken_for_it(log: Log, journal: list[Entry]) -> None:
    """Its floor lies below what was published before it ended."""
    reported = found(log, journal, sweep(4, 200), sweep(2, 270), sweep(7, 300))
    assert reported.places == [Place(T, 5), Place(T, 7)]


def test_a_snapshot_of_one_chunk_that_ends_meanwhile_is_not_taken_for_it(journal: list[Entry]) -> None:
    """Nothing was published since its floor was fixed, but for its own rows."""
    log = Log()
    log.change("r", 4, 270, snapshot="incremental")
    reported = found(log, journal[5:6], sweep(1, 270), sweep(2, 300))
    assert reported.places == [Place(T, 2)]


def test_those_before_the_stream_are_not_in_it(log: Log) -> None:
    """Nor does the sweep that ends a load stand for one."""
    before, at_once = truncate(1, xid=5, lsn=99), truncate(2, xid=6, lsn=100)
    assert found(log, [before], sweep(0, 99)) == Truncations([], frozenset(), [])
    assert found(log, [at_once], sweep(0, 150)).lost == ["TRUNCATE of public.t in transaction 6 has no sweep"]

"""The topics against the journal and the rows: each way to differ is seen."""

from dataclasses import replace
from typing import Any

import pytest

from tests.checker import history
from tests.checker.journal import Entry
from tests.checker.positions import Sweep
from tests.checker.records import Change, Row, changes_of
from tests.checker.truncations import Place, Truncations
from tests.unit.checker.made import Log, entry, truncate

NONE = Truncations()


@pytest.fixture
def journal() -> list[Entry]:
    """Transaction 5 is before the snapshot at 100; 7 and 8 are streamed."""
    return [
        entry(1, "INSERT", None, 1, xid=5, lsn=50),
        entry(2, "INSERT", None, 2, xid=5, lsn=60),
        entry(3, "UPDATE", 1, 1, xid=7, lsn=110, name="y"),
        entry(4, "DELETE", 2, None, xid=7, lsn=120),
        entry(5, "UPDATE", 1, 3, xid=8, lsn=210, name="y"),
    ]


@pytest.fixture
def log() -> Log:
    made = Log()
    made.change("r", 1, commit_lsn=100)
    made.change("r", 2, commit_lsn=100, tx_index=1)
    made.change("u", 1, commit_lsn=200, tx_index=0, name="y")
    made.delete(2, commit_lsn=200, tx_index=1)
    made.delete(1, commit_lsn=300, xid=8)
    made.change("c", 3, commit_lsn=300, name="y", xid=8)
    return made


def findings(log: Log, journal: list[Entry]) -> list[str]:
    changes = changes_of(log.records)
    return [
        *history.streams_the_journal(changes, journal, begins=100),
        *history.loads_what_came_before(changes, journal, 1, Truncations()),
    ]


def without(log: Log, seq: int) -> Log:
    log.records = [c.record for c in changes_of(log.records) if c.seq != seq]
    return log


def test_a_true_history_has_no_complaints(log: Log, journal: list[Entry]) -> None:
    assert findings(log, journal) == []


def test_a_lost_event_is_seen(log: Log, journal: list[Entry]) -> None:
    assert findings(without(log, 4), journal) == ['transaction 7: 1 changes lost, the first d of public.t {"id": 2}']


def test_a_lost_first_event_is_seen(log: Log, journal: list[Entry]) -> None:
    assert any("instead of u of public.t" in line for line in findings(without(log, 3), journal))


def test_a_lost_transaction_is_seen(log: Log, journal: list[Entry]) -> None:
    log.records = [c.record for c in changes_of(log.records) if c.xid != 7]
    assert findings(log, journal)[0] == 'lost: transaction 7 with 2 changes, of u of public.t {"id": 1}'


def test_a_lost_transaction_without_net_effect_is_seen(log: Log, journal: list[Entry]) -> None:
    journal += [entry(6, "INSERT", None, 9, xid=9, lsn=310), entry(7, "DELETE", 9, None, xid=9, lsn=320)]
    assert findings(log, journal) == ['lost: transaction 9 with 2 changes, of c of public.t {"id": 9}']


def test_a_duplicated_event_is_seen(log: Log, journal: list[Entry]) -> None:
    log.change("c", 3, commit_lsn=300, name="y", xid=8)
    assert any("1 events too many" in line for line in findings(log, journal))


def test_a_phantom_transaction_is_seen(log: Log, journal: list[Entry]) -> None:
    log.change("c", 9, commit_lsn=400, xid=99)
    assert any("phantom: transaction 99" in line for line in findings(log, journal))


def test_a_half_of_a_moved_key_is_seen(log: Log, journal: list[Entry]) -> None:
    assert any("1 changes lost" in line for line in findings(without(log, 6), journal))


def test_another_order_inside_a_transaction_is_seen(log: Log, journal: list[Entry]) -> None:
    journal[2], journal[3] = journal[3], journal[2]
    assert any("instead of d of public.t" in line for line in findings(log, journal))


def test_truncate_calls_for_no_row_record(log: Log, journal: list[Entry]) -> None:
    journal[3:3] = [truncate(10, xid=7, lsn=115)]
    journal += [truncate(11, xid=9, lsn=310)]
    assert [*history.streams_the_journal(changes_of(log.records), journal, begins=100)] == []


def test_a_table_that_was_truncated_before_the_load_is_empty_in_it(log: Log, journal: list[Entry]) -> None:
    log.records = [c.record for c in changes_of(log.records) if c.op != "r"]
    log.seq = 0
    log.change("r", 9, commit_lsn=100)
    journal[2:2] = [truncate(10, xid=6, lsn=70), entry(11, "INSERT", None, 9, xid=6, lsn=80)]
    streamed = truncate(12, xid=9, lsn=310)
    journal.append(streamed)
    emptied = Truncations([], frozenset({streamed.number}))
    assert [*history.loads_what_came_before(changes_of(log.records), journal, 1, emptied)] == []
    (complaint,) = history.loads_what_came_before(changes_of(log.records), journal, 1, Truncations())
    assert complaint == 'load of public.t: row {"id": 9} is not in the source'


def test_another_row_is_seen(log: Log, journal: list[Entry]) -> None:
    journal[2] = entry(3, "UPDATE", 1, 1, xid=7, name="another")
    assert any("holds another row" in line for line in findings(log, journal))


def test_an_old_row_that_was_not_there_is_seen(journal: list[Entry]) -> None:
    deletes = Log()
    deletes.delete(2, commit_lsn=200)
    changes = [_with_before(change, {"id": 2, "name": "never"}) for change in changes_of(deletes.records)]
    assert [*history.streams_the_journal(changes, [entry(1, "DELETE", 2, None)], begins=0)] != []


def test_a_transaction_in_two_epochs_is_seen(log: Log, journal: list[Entry]) -> None:
    log.epoch, log.seq = 2, 0
    log.change("c", 3, commit_lsn=300, name="y", xid=8)
    assert any("several epochs" in line for line in findings(log, journal))


def test_a_row_missing_from_the_load_is_seen(log: Log, journal: list[Entry]) -> None:
    assert findings(without(log, 2), journal) == ['load of public.t: row {"id": 2} is missing']


def test_a_row_loaded_twice_is_seen(log: Log, journal: list[Entry]) -> None:
    log.change("r", 2, commit_lsn=100)
    assert any("a row loaded twice" in line for line in findings(log, journal))


def test_a_row_in_the_load_that_the_snapshot_can_not_hold_is_seen(log: Log, journal: list[Entry]) -> None:
    log.change("r", 9, commit_lsn=100)
    assert 'load of public.t: row {"id": 9} is not in the source' in findings(log, journal)


def test_a_transaction_in_the_stream_and_in_the_load_is_seen(log: Log, journal: list[Entry]) -> None:
    journal += [entry(6, "INSERT", None, 4, xid=9, lsn=90)]
    log.change("r", 4, commit_lsn=100)
    log.change("c", 4, commit_lsn=310, xid=9)
    assert 'load of public.t: row {"id": 4} is not in the source' in findings(log, journal)


# ---- folding

ROWS = {"public.t": [({"id": 3}, {"id": 3, "name": "y"})]}


def folded(log: Log, sweeps: list[Sweep], rows: dict[str, list[tuple[Row, Row]]]) -> list[str]:
    return [*history.folds_to_the_source(changes_of(log.records), sweeps, rows)]


def test_the_topics_fold_to_the_source(log: Log) -> None:
    assert folded(log, [], {"public.t": [({"id": 3}, {"id": 3, "name": "y"})]}) == []


def test_a_missing_row_is_named(log: Log) -> None:
    rows: dict[str, list[tuple[Row, Row]]] = {
        "public.t": [({"id": 3}, {"id": 3, "name": "y"}), ({"id": 4}, {"id": 4, "name": None})]
    }
    assert folded(log, [], rows) == ['public.t: row {"id": 4} is missing']


def test_a_row_too_many_is_named(log: Log) -> None:
    assert folded(log, [], {"public.t": []}) == ['public.t: row {"id": 3} is not in the source']


@pytest.mark.parametrize(
    "row", [{"id": 3, "name": "z"}, {"id": 3, "name": None}, {"id": 3}, {"id": 3, "name": "y", "b": 1}]
)
def test_a_differing_column_is_named(log: Log, row: Row) -> None:
    (complaint,) = folded(log, [], {"public.t": [({"id": 3}, row)]})
    assert complaint.startswith('public.t: row {"id": 3} differs in ')


def test_rows_below_the_floor_of_a_sweep_are_gone(log: Log) -> None:
    sweep = Sweep("public.t", 2 << 48, 400, 2)
    assert folded(log, [sweep], {"public.t": []}) == []
    log.epoch, log.seq = 2, 0
    log.change("r", 8, commit_lsn=400)
    assert folded(log, [sweep], {"public.t": [({"id": 8}, {"id": 8, "name": "x"})]}) == []


def _with_before(change: Change, before: dict[str, object]) -> Change:
    fields = {name: getattr(change, name) for name in change.__slots__}
    return Change(**{**fields, "before": before})


# ---- rows that were read beside the stream


def chunk_row(log: Log, number: int, commit_lsn: int, name: str) -> None:
    log.change("r", number, commit_lsn, name=name, snapshot="incremental")


def chunk_complaints(log: Log, journal: list[Entry], emptied: Truncations = NONE) -> list[str]:
    return [*history.chunks_are_the_source(changes_of(log.records), journal, 1, emptied)]


def test_a_chunk_s_row_is_what_the_source_had_at_its_mark() -> None:
    journal = [
        entry(1, "INSERT", None, 1, xid=5, name="a"),
        entry(2, "INSERT", None, 2, xid=5, name="b"),
        entry(3, "UPDATE", 1, 1, xid=7, name="c"),
    ]
    log = Log()
    chunk_row(log, 2, 150, "b")
    log.change("u", 1, 200, name="c", xid=7)
    chunk_row(log, 1, 250, "c")
    assert chunk_complaints(log, journal) == []
    chunk_row(log, 1, 300, "a")
    (complaint,) = chunk_complaints(log, journal)
    assert "the source has another row at its mark" in complaint


def test_a_row_that_a_chunk_brings_back_is_seen() -> None:
    journal = [entry(1, "INSERT", None, 1, xid=5), entry(2, "DELETE", 1, None, xid=7)]
    log = Log()
    log.delete(1, 200, xid=7)
    chunk_row(log, 1, 250, "x")
    (complaint,) = chunk_complaints(log, journal)
    assert "the source has no such row at its mark" in complaint


def test_a_row_that_a_chunk_brings_back_after_truncate_is_seen() -> None:
    """And one that was written after it is as true as before."""
    journal = [
        entry(1, "INSERT", None, 1, xid=5),
        truncate(2, xid=7, lsn=210),
        entry(3, "INSERT", None, 2, xid=8, lsn=240),
    ]
    log = Log()
    chunk_row(log, 1, 200, "x")
    log.change("c", 2, 250, xid=8)
    chunk_row(log, 2, 300, "x")
    emptied = Truncations([Place("public.t", 2), Place("public.other", 1)], frozenset({2}))
    assert chunk_complaints(log, journal, emptied) == []
    chunk_row(log, 1, 350, "x")
    (complaint,) = chunk_complaints(log, journal, emptied)
    assert complaint.startswith('r of {"id": 1} (epoch 1, seq 4')
    assert "the source has no such row at its mark" in complaint


def test_a_key_that_was_not_found_is_deleted_only_where_the_source_has_no_such_row() -> None:
    journal = [entry(1, "INSERT", None, 1, xid=5), entry(2, "DELETE", 1, None, xid=7)]
    log = Log()

    def absent(number: int, commit_lsn: int) -> None:
        log.change("d", number, commit_lsn, xid=None, snapshot="incremental")

    absent(2, 150)
    log.delete(1, 200, xid=7)
    absent(1, 250)

    def complaints() -> list[str]:
        return [*history.deletes_of_chunks_are_the_source(changes_of(log.records), journal, 1, NONE)]

    assert complaints() == []
    assert [*history.streams_the_journal(changes_of(log.records), journal, begins=190)] == []
    log.change("c", 3, 300, xid=9)
    journal.append(entry(3, "INSERT", None, 3, xid=9))
    absent(3, 350)
    (complaint,) = complaints()
    assert "the source has that row at its mark" in complaint


# ---- sweeps


def sweep_complaints(
    log: Log, journal: list[Entry], *sweeps: tuple[int, int], emptied: Truncations = NONE
) -> list[str]:
    """`sweeps`: seq of the floor, and the LSN of the commit that they belong to."""
    made = [Sweep("public.t", 1 << 48 | seq, commit_lsn + 1, 1) for seq, commit_lsn in sweeps]
    return [*history.sweeps_spare_the_source(changes_of(log.records), journal, made, 1, emptied)]


@pytest.fixture
def swept() -> tuple[Log, list[Entry]]:
    """Rows 1 and 2 from before the stream; 2 is read, 1 is updated and then read again, 3 is written."""
    log = Log()
    chunk_row(log, 2, 150, "x")
    log.change("u", 1, 200, name="y", xid=7)
    chunk_row(log, 1, 250, "y")
    log.change("c", 3, 300, xid=8)
    return log, [
        entry(1, "INSERT", None, 1, xid=5),
        entry(2, "INSERT", None, 2, xid=5),
        entry(3, "UPDATE", 1, 1, xid=7, lsn=180, name="y"),
        entry(4, "INSERT", None, 3, xid=8, lsn=280),
    ]


def test_a_sweep_below_every_row_is_right(swept: tuple[Log, list[Entry]]) -> None:
    assert sweep_complaints(*swept, (1, 250), (1, 400)) == []


def test_a_sweep_that_takes_a_row_of_the_source_is_seen_though_the_row_is_read_again(
    swept: tuple[Log, list[Entry]],
) -> None:
    """In the end, no store shows it."""
    log, journal = swept
    chunk_row(log, 2, 500, "x")
    chunk_row(log, 1, 500, "y")
    (complaint,) = sweep_complaints(log, journal, (2, 250))
    assert complaint == 'the sweep of public.t as of 251 takes {"id": 2}, which the source has'


def test_a_sweep_before_a_row_was_read_is_seen(swept: tuple[Log, list[Entry]]) -> None:
    assert len(sweep_complaints(*swept, (1, 120))) == 2


def test_a_sweep_at_the_end_is_looked_at_too(swept: tuple[Log, list[Entry]]) -> None:
    assert len(sweep_complaints(*swept, (2, 400))) == 1


def test_truncate_takes_what_the_source_has_no_more(swept: tuple[Log, list[Entry]]) -> None:
    log, journal = swept
    emptied = Truncations([Place("public.t", 5)], frozenset({5}))
    assert sweep_complaints(log, [*journal, truncate(5, xid=9, lsn=350)], (5, 360), emptied=emptied) == []


# ---- large values


HOLE: dict[str, Any] = {"unchanged": ["name"]}
FILLED: dict[str, Any] = {"filled": ["name"]}


def large(*versions: str) -> list[Entry]:
    """A row that is inserted and updated, a transaction each."""
    ops = ["INSERT", *["UPDATE"] * (len(versions) - 1)]
    return [
        entry(number, op, None if number == 1 else 1, 1, xid=number, lsn=100 * number, name=name)
        for number, (op, name) in enumerate(zip(ops, versions, strict=True), 1)
    ]


def stream_complaints(written: list[Entry], *events: tuple[str, dict[str, Any]]) -> list[str]:
    log = Log()
    for number, (name, source) in enumerate(events, 1):
        log.change("c" if number == 1 else "u", 1, 100 * number + 50, xid=number, name=name, **source)
    changes = changes_of(log.records)
    return [*history.streams_the_journal(changes, written, 0), *history.last_rows_are_whole(changes)]


def test_a_value_that_was_read_may_be_newer_but_not_older() -> None:
    written = large("old", "large", "large", "larger")
    assert not stream_complaints(written, ("old", {}), ("large", {}), ("large", FILLED), ("larger", {}))
    assert not stream_complaints(written, ("old", {}), ("large", {}), ("larger", FILLED), ("larger", {}))
    (stale,) = stream_complaints(written, ("old", {}), ("large", {}), ("old", FILLED), ("larger", {}))
    assert "transaction 3, change 0" in stale
    assert stream_complaints(written, ("old", {}), ("large", {}), ("larger", {}), ("larger", {}))


def test_a_row_that_was_swept_may_lack_large_values() -> None:
    log = Log()
    log.change("u", 1, 150, xid=1, name="old")
    (change,) = [replace(change, unchanged=frozenset({"body"})) for change in changes_of(log.records)]
    assert len(list(history.last_rows_are_whole([change]))) == 1
    below, above = (Sweep(change.table, change.version + n, 200, change.epoch) for n in (0, 1))
    assert len(list(history.last_rows_are_whole([change], [below]))) == 1
    assert list(history.last_rows_are_whole([change], [above])) == []


def test_a_row_may_lack_large_values_but_not_the_last_of_its_key() -> None:
    written = large("old", "large", "large")
    assert not stream_complaints(written, ("old", {}), ("large", HOLE), ("large", {}))
    (left,) = stream_complaints(written, ("old", {}), ("large", {}), ("large", HOLE))
    assert "the last of its key, and without name" in left


def test_a_chunk_is_held_against_what_was_written_not_against_what_was_filled() -> None:
    log = Log()
    log.change("c", 1, 150, xid=1, name="old")
    log.change("u", 1, 250, xid=2, name="larger", **FILLED)
    chunk_row(log, 1, 260, "large")
    log.change("u", 1, 350, xid=3, name="larger")
    assert not chunk_complaints(log, large("old", "large", "larger"))

"""Each rule refuses a list that breaks it, and takes one that does not."""

import pytest

from tests.checker import rules
from tests.checker.records import Record, changes_of, partition_of
from tests.unit.checker.made import PARTITIONS, TOPIC, Log, key

COUNTS = {TOPIC: PARTITIONS}


@pytest.fixture
def log() -> Log:
    """Two snapshot rows, then a transaction that updates one, deletes the other and moves nothing."""
    made = Log()
    made.change("r", 1, commit_lsn=100)
    made.change("r", 2, commit_lsn=100, tx_index=1)
    made.change("u", 1, commit_lsn=200, tx_index=0)
    made.delete(2, commit_lsn=200, tx_index=1)
    made.change("c", 2, commit_lsn=300, tx_index=0)
    return made


def complaints(log: Log, *floors: int) -> dict[str, list[str]]:
    """Of all rules that complain."""
    records, changes = log.records, changes_of(log.records)
    found = {
        "readable": rules.readable(records),
        "seq": rules.seq_without_gap_or_repetition(changes, floors),
        "version": rules.versions_rise_for_each_key(records),
        "partition": rules.keys_lie_where_java_puts_them(records, COUNTS),
        "tombstone": rules.deletes_have_tombstones(records),
        "position": rules.positions_rise_with_seq(changes),
        "epoch": rules.epochs_follow_each_other(records),
    }
    return {rule: reported for rule, sentences in found.items() if (reported := list(sentences))}


def test_a_true_log_has_no_complaints(log: Log) -> None:
    assert complaints(log) == {}


def test_two_epochs_have_a_numbering_each(log: Log) -> None:
    log.epoch, log.seq = 2, 0
    log.change("r", 1, commit_lsn=400)
    assert complaints(log) == {}


@pytest.mark.invariant(3)
def test_a_missing_seq_is_seen(log: Log) -> None:
    log.seq += 1
    log.change("c", 9, commit_lsn=400)
    assert complaints(log) == {"seq": ["epoch 1: 1 seq missing of 1 to 7, the first 6"]}


def test_a_sweep_may_have_a_seq_of_its_own(log: Log) -> None:
    log.seq += 1
    log.change("c", 9, commit_lsn=400)
    assert complaints(log, 1 << 48 | 6) == {}
    assert complaints(log, 2 << 48 | 6, 1 << 48 | 7) == {"seq": ["epoch 1: 1 seq missing of 1 to 7, the first 6"]}


def test_a_missing_first_seq_is_seen() -> None:
    log = Log()
    log.seq = 1
    log.change("c", 1, commit_lsn=400)
    assert complaints(log) == {"seq": ["epoch 1: 1 seq missing of 1 to 2, the first 1"]}


@pytest.mark.invariant(3)
def test_a_repeated_seq_is_seen(log: Log) -> None:
    log.seq -= 1
    log.change("c", 9, commit_lsn=300, tx_index=1)
    assert "seq 5 twice in epoch 1" in complaints(log)["seq"][0]


def test_a_version_that_goes_back_for_a_key_is_seen(log: Log) -> None:
    log.seq = 0
    log.change("u", 1, commit_lsn=400)
    assert "version (1, 1) of key b'{\"id\":1}' after (1, 3)" in complaints(log)["version"][0]


def test_the_same_version_twice_for_a_key_is_seen() -> None:
    log = Log()
    log.change("c", 1, commit_lsn=100)
    log.records.append(log.records[0])
    assert "after (1, 1)" in complaints(log)["version"][0]


def test_a_tombstone_without_version_is_seen(log: Log) -> None:
    log.change("d", 1, commit_lsn=400)
    log.append(key(1), None)
    assert "without a version" in complaints(log)["version"][0]


@pytest.mark.invariant(2)
def test_a_key_in_another_partition_is_seen() -> None:
    record = Log().change("c", 1, commit_lsn=100)
    wrong = (record.partition + 1) % PARTITIONS
    log = Log()
    log.records = [Record(TOPIC, wrong, 0, record.key, record.value)]
    assert complaints(log) == {
        "partition": [f"{TOPIC}/{wrong}@0: key {key(1)!r} belongs into partition {partition_of(key(1), PARTITIONS)}"]
    }


def test_a_delete_without_tombstone_at_the_end_is_seen(log: Log) -> None:
    log.change("d", 1, commit_lsn=400)
    assert ["a delete without a tombstone" in line for line in complaints(log)["tombstone"]] == [True]


def test_a_delete_without_tombstone_before_the_next_record_is_seen(log: Log) -> None:
    log.change("d", 1, commit_lsn=400)
    log.change("c", 1, commit_lsn=500)
    assert ["instead of a tombstone" in line for line in complaints(log)["tombstone"]] == [True]


def test_a_tombstone_without_delete_is_seen(log: Log) -> None:
    log.append(key(1), None, version=1 << 48 | 3)
    assert ["without a delete before it" in line for line in complaints(log)["tombstone"]] == [True]


def test_a_tombstone_with_another_version_is_seen(log: Log) -> None:
    log.change("d", 1, commit_lsn=400)
    log.append(key(1), None, version=1 << 48 | 7)
    assert ["another version" in line for line in complaints(log)["tombstone"]] == [True]


def test_a_moved_key_shares_its_position(log: Log) -> None:
    log.delete(1, commit_lsn=400, tx_index=3)
    log.change("c", 7, commit_lsn=400, tx_index=3)
    assert complaints(log) == {}


@pytest.mark.parametrize(("commit_lsn", "tx_index"), [(300, 0), (200, 5), (299, 9)])
def test_a_position_that_does_not_rise_is_seen(log: Log, commit_lsn: int, tx_index: int) -> None:
    log.change("c", 9, commit_lsn=commit_lsn, tx_index=tx_index)
    assert ["follows (300, 0)" in line for line in complaints(log)["position"]] == [True]


def test_a_snapshot_row_after_the_stream_began_is_seen(log: Log) -> None:
    log.change("r", 9, commit_lsn=100)
    assert ["a snapshot row after the streamed" in line for line in complaints(log)["position"]] == [True]


def test_a_streamed_row_from_before_the_snapshot_is_seen() -> None:
    log = Log()
    log.change("r", 1, commit_lsn=100)
    log.change("c", 2, commit_lsn=99)
    assert ["before the snapshot's point" in line for line in complaints(log)["position"]] == [True]


def test_snapshot_rows_at_two_points_are_seen() -> None:
    log = Log()
    log.change("r", 1, commit_lsn=100)
    log.change("r", 2, commit_lsn=101)
    assert complaints(log) == {"position": ["epoch 1: snapshot rows at 2 points"]}


def test_a_record_of_a_fenced_writer_is_seen(log: Log) -> None:
    log.epoch, log.seq = 2, 0
    log.change("r", 5, commit_lsn=400)
    same_partition = next(
        n for n in range(6, 100) if partition_of(key(n), PARTITIONS) == partition_of(key(5), PARTITIONS)
    )
    log.epoch, log.seq = 1, 5
    log.change("c", same_partition, commit_lsn=500)
    assert ["epoch 1 after epoch 2" in line for line in complaints(log)["epoch"]] == [True]


def test_a_record_without_key_is_seen(log: Log) -> None:
    assert [*rules.readable([Record(TOPIC, 0, 0, b"", None)])] == [f"{TOPIC}/0@0: no key"]


def test_a_value_that_is_no_row_record_is_seen() -> None:
    assert [*rules.readable([Record(TOPIC, 0, 0, b"k", b"{")])] != []

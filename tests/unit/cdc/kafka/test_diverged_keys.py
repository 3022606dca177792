"""Keys whose last record may come from changes that the promoted server does not have."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from cdc.kafka import diverged_keys
from cdc.kafka.diverged_keys import DivergedKeys, TooManyKeysError, last_shared

EPOCH, SWITCH = 2, 1_000
Given = tuple[str, bytes | None]


def record(key: str, lsn: int, *, epoch: int = EPOCH, after: Any = None, **source: Any) -> Given:
    value = {
        "before": None,
        "after": after or {"id": key},
        "source": {
            "version": "0",
            "epoch": epoch,
            "seq": 7,
            "commit_lsn": lsn,
            "tx_index": 0,
            "schema_version": 1,
            **source,
        },
        "transaction": None,
        "op": "u",
        "ts_ms": 1,
    }
    return key, json.dumps(value, separators=(",", ":")).encode()


def gone(key: str) -> Given:
    return key, None


def found(*partitions: Sequence[Given], are_read_later: bool = True) -> DivergedKeys:
    keys = DivergedKeys(EPOCH, SWITCH, are_read_later=are_read_later)
    for partition in partitions:
        for key, value in partition:
            keys.take(key.encode(), value, 1)
        keys.end_partition()
    return keys


def keys_of(*partitions: Sequence[Given]) -> set[str]:
    return {key.decode() for key in found(*partitions).keys}


def test_a_transaction_is_of_the_common_past_if_its_commit_record_begins_below_the_switch() -> None:
    assert keys_of([record("a", 999), record("b", 1_000), record("c", 5_000)]) == {"b", "c"}


def test_the_last_record_of_a_key_decides() -> None:
    # LSNs of earlier epochs are not compared.
    assert keys_of([record("a", 9_000, epoch=1), record("a", 10), record("b", 9_000, epoch=1)]) == set()


def test_an_older_record_in_another_partition_is_not_the_last_one() -> None:
    assert keys_of([record("a", 2_000)], [record("a", 10)]) == {"a"}, "partitions were added"


def test_a_delete_counts_also_if_only_its_tombstone_is_left() -> None:
    assert keys_of([record("a", 10), record("b", 2_000), gone("b"), gone("c")]) == {"b", "c"}
    assert keys_of([gone("c"), record("a", 10)]) == set(), "what comes before a record of the common past is of it, too"
    assert keys_of([record("a", 10), gone("a")], [gone("a")]) == {"a"}, "another partition begins"
    assert keys_of([record("a", 10), gone("a")]) == set(), "its delete is of the common past"


def test_a_value_that_was_read_from_the_table_may_be_newer_than_its_transaction() -> None:
    assert keys_of([record("a", 10, filled=["body"]), record("b", 10, unchanged=["body"])]) == {"a"}
    assert keys_of([record("a", 10, filled=["body"]), record("a", 20)]) == set()
    assert not found([record("a", 10, filled=["body"])], are_read_later=False).keys, "all were read before the switch"


def test_text_of_a_user_is_no_place_in_the_log() -> None:
    text = ',"epoch":2,"seq":7,"commit_lsn":5000,'
    assert keys_of([record("a", 10, after={"id": "a", "note": text, "epoch": 2, "commit_lsn": 5_000})]) == set()


def test_whether_the_epoch_began_before_the_switch_is_known_by_a_record() -> None:
    assert not found([record("a", 9_000, epoch=1), record("b", 2_000)]).has_shared
    assert found([record("a", 10)], [record("b", 2_000)]).has_shared


class Message(NamedTuple):
    offset_: int
    key_: str
    value_: bytes | None

    def offset(self) -> int:
        return self.offset_

    def value(self) -> bytes | None:
        return self.value_


class Partition:
    """A partition whose offsets have gaps, as a compacted one's have. Counts what is read."""

    def __init__(self, *records: Given) -> None:
        self.records = [(5 * number, *one) for number, one in enumerate(records)]
        self.read_count = 0

    def end(self, _topic: str, _partition: int) -> int:
        return 5 * len(self.records) + 1  # behind a marker

    def read(self, _topic: str, _partition: int, start: int, end: int) -> Iterator[Message]:
        for offset, key, value in self.records:
            if start <= offset < end:
                self.read_count += 1
                yield Message(offset, key, value)


def begun_at(*records: Given) -> tuple[int, Partition]:
    """Where reading the end of a partition begins, as the number of a record; and the partition."""
    partition, keys = Partition(*records), DivergedKeys(EPOCH, SWITCH, are_read_later=False)
    offset = last_shared(partition, ("t", 0), keys, lambda value: value)  # type: ignore[arg-type]
    return offset // 5, partition


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverged_keys, "STEP_FIRST", 10)


@pytest.mark.usefixtures("_small_steps")
@pytest.mark.parametrize("behind", [0, 1, 2, 7, 60, 300])
def test_only_the_end_of_a_partition_is_read_from_a_record_of_the_common_past_on(behind: int) -> None:
    past = [record(f"p{n}", n) for n in range(500)]
    happened_never = [record(f"n{n}", SWITCH + n) for n in range(behind)]
    start, partition = begun_at(*past, *happened_never)
    assert max(0, 500 - 4 * (behind + 2)) <= start < 500, "a record of the common past, not far before the end"
    assert partition.read_count <= 5
    rest = [(key, value) for _, key, value in partition.records[start:]]
    assert found(rest).keys == found([*past, *happened_never]).keys


@pytest.mark.usefixtures("_small_steps")
def test_tombstones_and_records_of_other_programs_do_not_say_where_the_common_past_ends() -> None:
    foreign: Given = ("x", b'{"note":1}')
    past = [record("a", 1), record("b", 2), record("b", 3)]
    start, partition = begun_at(*past, gone("b"), foreign, *[gone(f"g{n}") for n in range(40)], record("c", 2_000))
    assert start == 0, "the whole partition, which is short"
    assert found([(key, value) for _, key, value in partition.records]).keys >= {b"c", b"g0"}


@pytest.mark.usefixtures("_small_steps")
def test_a_record_of_an_earlier_epoch_is_of_the_common_past_too() -> None:
    start, _ = begun_at(*[record(f"p{n}", 9_000, epoch=1) for n in range(100)], record("a", 2_000))
    assert start > 90
    start, _ = begun_at(*[record(f"p{n}", 2_000) for n in range(100)])
    assert start == 0, "the epoch may have begun behind the switch: everything is read"


def test_too_many_keys_are_refused_but_not_because_of_those_that_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverged_keys, "KEYS_MAX", 2)
    with pytest.raises(TooManyKeysError):
        found([record(key, 2_000) for key in "abc"])
    assert keys_of([gone("a"), gone("b"), record("x", 10), gone("c"), gone("d")]) == {"c", "d"}
    monkeypatch.setattr(diverged_keys, "BYTES_MAX", 3)
    with pytest.raises(TooManyKeysError):
        found([record("abcd", 2_000)])
    assert keys_of([gone("abc"), record("x", 10), gone("abc")]) == {"abc"}

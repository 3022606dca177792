"""Keys whose last record may come from changes that the promoted server does not have."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cdc.kafka import diverged_keys
from cdc.kafka.diverged_keys import DivergedKeys, TooManyKeysError

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


def found(*partitions: Sequence[Given]) -> DivergedKeys:
    keys = DivergedKeys(EPOCH, SWITCH)
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


def test_text_of_a_user_is_no_place_in_the_log() -> None:
    text = ',"epoch":2,"seq":7,"commit_lsn":5000,'
    assert keys_of([record("a", 10, after={"id": "a", "note": text, "epoch": 2, "commit_lsn": 5_000})]) == set()


def test_whether_the_epoch_began_before_the_switch_is_known_by_a_record() -> None:
    assert not found([record("a", 9_000, epoch=1), record("b", 2_000)]).has_shared
    assert found([record("a", 10)], [record("b", 2_000)]).has_shared


def test_too_many_keys_are_refused_but_not_because_of_those_that_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverged_keys, "KEYS_MAX", 2)
    with pytest.raises(TooManyKeysError):
        found([record(key, 2_000) for key in "abc"])
    assert keys_of([gone("a"), gone("b"), record("x", 10), gone("c"), gone("d")]) == {"c", "d"}
    monkeypatch.setattr(diverged_keys, "BYTES_MAX", 3)
    with pytest.raises(TooManyKeysError):
        found([record("abcd", 2_000)])
    assert keys_of([gone("abc"), record("x", 10), gone("abc")]) == {"abc"}

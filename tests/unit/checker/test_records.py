"""The plain consumer's reading of records."""

import json
from decimal import Decimal

import pytest

from tests.checker.records import NotAChangeError, Record, change_of, murmur2, parse, partition_of
from tests.unit.checker.made import Log, key


def test_murmur2_gives_the_numbers_of_kafkas_own_tests() -> None:
    # org.apache.kafka.common.utils.UtilsTest#testMurmur2
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {data: (murmur2(data) ^ 0x80000000) - 0x80000000 for data in known} == known


def test_a_partition_is_the_positive_hash_modulo_the_count() -> None:
    assert partition_of(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10


def test_a_change_has_what_its_source_block_says() -> None:
    log = Log(epoch=3)
    change = change_of(log.change("u", 5, commit_lsn=900, tx_index=2, name="Zoë"))
    assert (change.op, change.table, change.version) == ("u", "public.t", 3 << 48 | 1)
    assert (change.position, change.key, change.after) == ((900, 2), {"id": 5}, {"id": 5, "name": "Zoë"})


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '{"a":NaN}', '{"a":-Infinity}', "{"], ids=["twice", "nan", "infinity", "cut"]
)
def test_json_that_the_rfc_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_fractions_are_exact() -> None:
    assert parse("0.1") == Decimal("0.1")


@pytest.mark.parametrize("op", ["t", "m", ""])
def test_an_unknown_op_is_refused(op: str) -> None:
    record = Log().change("c", 1, commit_lsn=10)
    assert record.value is not None
    value = {**json.loads(record.value), "op": op}
    with pytest.raises(NotAChangeError, match="op"):
        change_of(Record(record.topic, 0, 0, record.key, json.dumps(value).encode()))


def test_a_streamed_row_marked_as_snapshot_is_refused() -> None:
    with pytest.raises(NotAChangeError, match="snapshot"):
        change_of(Log().change("c", 1, commit_lsn=10, snapshot="true"))


def test_a_key_that_is_not_the_rows_is_refused() -> None:
    record = Log().change("c", 1, commit_lsn=10)
    with pytest.raises(NotAChangeError, match="record key"):
        change_of(Record(record.topic, 0, 0, key(2), record.value))


@pytest.mark.parametrize("field", ["epoch", "seq", "commit_lsn", "tx_index", "txId", "table"])
def test_a_source_block_that_lacks_a_field_is_refused(field: str) -> None:
    record = Log().change("c", 1, commit_lsn=10)
    assert record.value is not None
    value = json.loads(record.value)
    del value["source"][field]
    with pytest.raises(NotAChangeError, match=field):
        change_of(Record(record.topic, 0, 0, record.key, json.dumps(value).encode()))


def test_a_delete_with_a_new_row_is_refused() -> None:
    record = Log().change("d", 1, commit_lsn=10)
    assert record.value is not None
    value = {**json.loads(record.value), "after": {"id": 1}}
    with pytest.raises(NotAChangeError, match="before and after"):
        change_of(Record(record.topic, 0, 0, record.key, json.dumps(value).encode()))

"""Records of merged chunks and lookups."""

import json
from dataclasses import replace

import pytest

from cdc.formats.unpublishable import Unpublishable
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Column, pack_version
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.ports.chunk_reader import ChunkRead
from cdc.snapshots.change_memory import Unseen
from cdc.snapshots.chunk_records import LINES_AT_ONCE, ChunkPosition, RowRecords
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA
from tests.unit.cdc.snapshots.loops import NOW_US, key, snapshot

RECORDS = RowRecords(CONTEXT)
PLACE = ChunkPosition(Lsn(700), 3, 20, NOW_US)
NOTHING = Unseen(is_forgotten=False, is_truncated=False, touched=set[bytes]().__contains__)
TOUCHED = Unseen(is_forgotten=False, is_truncated=False, touched={key(2)}.__contains__)


def places(values: list[bytes | None]) -> list[tuple[str, int, int, int]]:
    """(op, commit LSN, index, seq)"""
    read = [json.loads(value) for value in values if value is not None]
    return [(v["op"], v["source"]["commit_lsn"], v["source"]["tx_index"], v["source"]["seq"]) for v in read]


def test_rows_follow_each_other_without_those_that_were_touched() -> None:
    read = ChunkRead("n", snapshot(5), (b"1\tx", b"2\tx", b"3\tx"), ("3",), True, 0.1)
    records, count = RECORDS.of_chunk(SCHEMA, read, TOUCHED, PLACE)
    assert count == 2
    assert [record.key for record in records] == [key(1), key(3)]
    assert places([record.value for record in records]) == [("r", 700, 3, 20), ("r", 700, 4, 21)]


def test_numbers_follow_on_through_a_long_chunk_with_unusual_and_touched_rows() -> None:
    lines = [b"%d\tx" % n for n in range(1, 3 * LINES_AT_ONCE + 2)]
    lines[LINES_AT_ONCE] = b"%d\ta\\tb" % (LINES_AT_ONCE + 1)
    unpublishable = Unpublishable(Topics("shop"), "skip")
    lines[-1] = b"0\t\xff"
    read = ChunkRead("n", snapshot(5), tuple(lines), ("x",), True, 0.1)
    made, count = RowRecords(CONTEXT, unpublishable).of_chunk(SCHEMA, read, TOUCHED, PLACE)
    assert count == 3 * LINES_AT_ONCE - 1
    assert [record.key for record in made[:count]] == [key(n) for n in range(1, 3 * LINES_AT_ONCE + 1) if n != 2]
    assert places([record.value for record in made[:count]]) == [("r", 700, 3 + n, 20 + n) for n in range(count)]
    assert unpublishable.counts == {"public.customers": 1}


def test_absent_keys_are_deletes_with_their_tombstones_without_those_that_were_touched() -> None:
    records, count = RECORDS.of_absent(SCHEMA, (key(1), key(2), key(3)), TOUCHED, PLACE)
    assert count == 2
    assert [(record.key, record.value is None) for record in records] == [
        *((key(1), False), (key(1), True)),
        *((key(3), False), (key(3), True)),
    ]
    assert places([record.value for record in records]) == [("d", 700, 3, 20), ("d", 700, 4, 21)]
    versions = [dict(record.headers or ()).get("watershed.version") for record in records]
    assert versions == [None, b"%d" % pack_version(CONTEXT.epoch, 20), None, b"%d" % pack_version(CONTEXT.epoch, 21)]
    value = json.loads(records[0].value or b"")
    assert (value["before"], value["after"], value["source"]["snapshot"]) == ({"id": 1}, None, "incremental")


def test_after_a_truncate_that_is_not_seen_nothing_is_published() -> None:
    emptied = Unseen(is_forgotten=False, is_truncated=True, touched=set[bytes]().__contains__)
    assert RECORDS.of_absent(SCHEMA, (key(1),), emptied, PLACE) == ([], 0)
    read = ChunkRead("n", snapshot(5), (b"1\tx",), ("1",), True, 0.1)
    assert RECORDS.of_chunk(SCHEMA, read, emptied, PLACE) == ([], 0)
    assert RECORDS.of_absent(SCHEMA, (), NOTHING, PLACE) == ([], 0)


def test_rows_that_can_not_be_published_take_no_place() -> None:
    topics = Topics("shop")
    unpublishable = Unpublishable(topics, "dead_letter", {SCHEMA.topic: 1_000})
    records = RowRecords(CONTEXT, unpublishable)
    large, formless = b"2\t" + b"x" * 1_000, b"3\t\xff"
    read = ChunkRead("n", snapshot(5), (b"1\tx", large, formless, b"4\tx"), ("4",), True, 0.1)
    made, count = records.of_chunk(SCHEMA, read, NOTHING, PLACE)
    assert [record.key for record in made[:count]] == [key(1), key(4)]
    assert places([record.value for record in made[:count]]) == [("r", 700, 3, 20), ("r", 700, 4, 21)]
    assert [(record.topic, record.key) for record in made[count:] if record.topic == topics.dead_letter] == [
        (topics.dead_letter, key(2)),
        (topics.dead_letter, b""),
    ]
    assert unpublishable.counts == {"public.customers": 2}


def test_a_row_that_was_touched_is_no_dead_letter() -> None:
    unpublishable = Unpublishable(Topics("shop"), "dead_letter", {SCHEMA.topic: 1_000})
    records = RowRecords(CONTEXT, unpublishable)
    read = ChunkRead("n", snapshot(5), (b"2\t" + b"x" * 1_000,), ("2",), True, 0.1)
    assert records.of_chunk(SCHEMA, read, TOUCHED, PLACE) == ([], 0)


def test_where_capture_is_to_stop_a_chunk_is_not_published() -> None:
    read = ChunkRead("n", snapshot(5), (b"3\t\xff",), ("3",), True, 0.1)
    with pytest.raises(UnsupportedChangeError, match="not UTF-8"):
        RECORDS.of_chunk(SCHEMA, read, NOTHING, PLACE)


def test_rows_have_the_columns_that_their_table_has_by_now() -> None:
    records = RowRecords(CONTEXT)
    columns = (*SCHEMA.columns, Column("city", 25, -1, "text", True))
    for schema, line, after in (
        (SCHEMA, b"1\tx", {"id": 1, "name": "x"}),
        (replace(SCHEMA, version=2, columns=columns), b"1\tx\ty", {"id": 1, "name": "x", "city": "y"}),
        (SCHEMA, b"1\tz", {"id": 1, "name": "z"}),
    ):
        read = ChunkRead("n", snapshot(5), (line,), ("1",), True, 0.1)
        ((record,), _) = records.of_chunk(schema, read, NOTHING, PLACE)
        assert json.loads(record.value or b"")["after"] == after

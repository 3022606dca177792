"""Records of merged chunks and lookups."""

import json

from cdc.events import pack_version
from cdc.formats.debezium import TableEncoder
from cdc.lsn import Lsn
from cdc.pgoutput.relations import relation_of
from cdc.snapshots.memory import Unseen
from cdc.snapshots.publishing import Place, RowRecords
from cdc.snapshots.reading import ChunkRead, LookedUp
from tests.unit.cdc.loops import CONTEXT, SCHEMA
from tests.unit.cdc.snapshots.loops import NOW_US, key, snapshot

RECORDS = RowRecords(lambda schema: TableEncoder(schema, relation_of(schema), CONTEXT))
PLACE = Place(Lsn(700), 3, 20, NOW_US)
NOTHING = Unseen(is_forgotten=False, is_truncated=False, keys=())
TOUCHED = Unseen(is_forgotten=False, is_truncated=False, keys=(frozenset({key(2)}),))


def places(values: list[bytes | None]) -> list[tuple[str, int, int, int]]:
    """(op, commit LSN, index, seq)"""
    read = [json.loads(value) for value in values if value is not None]
    return [(v["op"], v["source"]["commit_lsn"], v["source"]["tx_index"], v["source"]["seq"]) for v in read]


def test_rows_follow_each_other_without_those_that_were_touched() -> None:
    read = ChunkRead("n", snapshot(5), (b"1\tx", b"2\tx", b"3\tx"), ("3",), True, 0.1)
    records = RECORDS.of_chunk(SCHEMA, read, TOUCHED, PLACE)
    assert [record.key for record in records] == [key(1), key(3)]
    assert places([record.value for record in records]) == [("r", 700, 3, 20), ("r", 700, 4, 21)]


def test_absent_keys_are_deletes_with_their_tombstones_without_those_that_were_touched() -> None:
    read = LookedUp("n", snapshot(5), (key(1), key(2), key(3)), 0.1)
    records = RECORDS.of_absent(SCHEMA, read, TOUCHED, PLACE)
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
    emptied = Unseen(is_forgotten=False, is_truncated=True, keys=())
    assert RECORDS.of_absent(SCHEMA, LookedUp("n", snapshot(5), (key(1),), 0.1), emptied, PLACE) == []
    read = ChunkRead("n", snapshot(5), (b"1\tx",), ("1",), True, 0.1)
    assert RECORDS.of_chunk(SCHEMA, read, emptied, PLACE) == []
    assert RECORDS.of_absent(SCHEMA, LookedUp("n", snapshot(5), (), 0.1), NOTHING, PLACE) == []

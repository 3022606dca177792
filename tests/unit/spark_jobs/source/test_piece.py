"""Rows of a sink's stream: what of the records is in them, and that it comes out again."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.events import pack_version
from spark_jobs.source import piece
from spark_jobs.source.piece import (
    EMPTY,
    Piece,
    PiecePartition,
    PieceRecord,
    joined,
    parts_of,
    piece_of,
    to_pieces,
    to_row,
)
from spark_jobs.source.reading import Fetched, Partition
from tests.unit.spark_jobs.records import AT_MS, OTHER, PARTITION, TOPIC, Signal, fetched, tombstone, upsert

BYTES = st.none() | st.binary(max_size=20)
PLACES = st.lists(st.builds(PiecePartition, st.text(max_size=9), *[st.integers(0, 1 << 62)] * 3), max_size=3)
RECORDS = st.lists(
    st.builds(
        PieceRecord,
        partition=st.integers(0, 2),
        offset=st.integers(0, 1 << 62),
        key=BYTES,
        value=BYTES,
        time_ms=st.integers(-1, 1 << 60),
        headers=st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2),
    ),
    max_size=4,
)
LOST = st.lists(st.tuples(st.text(max_size=5), st.integers(0, 99), st.text(max_size=5)), max_size=2)


@settings(deadline=None)  # the first array of pyarrow in a process imports pandas
@given(st.lists(st.builds(Piece, PLACES, RECORDS, st.booleans(), LOST), max_size=3))
def test_pieces_come_out_of_their_rows_as_they_were(pieces: list[Piece]) -> None:
    rows = [to_row(each) for each in pieces]
    assert list(to_pieces(iter(rows))) == pieces
    assert [row.column("records").to_pylist() for row in rows] == [[len(each.records)] for each in pieces]
    together = pa.Table.from_batches(rows, piece.SCHEMA).combine_chunks().to_batches()
    assert list(to_pieces(iter(together))) == pieces, "Spark may put rows together"


def test_a_piece_has_the_records_with_where_each_was_read() -> None:
    read = piece_of(
        fetched(upsert(7, 1, 1), upsert(40, 2, 2, partition=1), tombstone(8, 3, 3), end=11, is_full=True),
        {PARTITION: 5, OTHER: 30},
    )
    assert read.partitions == [PiecePartition(TOPIC, 0, 5, 11), PiecePartition(TOPIC, 1, 30, 41)]
    assert read.positions == {PARTITION: 11, OTHER: 41}
    assert [(read.partition(record), record.offset, record.key) for record in read.records] == [
        (PARTITION, 7, b'{"id": 1}'),
        (OTHER, 40, b'{"id": 2}'),
        (PARTITION, 8, b'{"id": 3}'),
    ]
    assert {record.time_ms for record in read.records} == {AT_MS}
    assert read.is_full


def test_only_a_tombstone_brings_its_headers() -> None:
    """They say nothing that another record's value does not."""
    first: Any = upsert(0, 1, 1)
    first._headers = [("watershed.version", b"1")]
    read = piece_of(fetched(first, tombstone(1, 1, 2)), {PARTITION: 0})
    headers = [("watershed.version", str(pack_version(1, 2)).encode())]
    assert [(record.value is None, record.headers) for record in read.records] == [(False, None), (True, headers)]
    assert next(to_pieces(iter([to_row(read)]))) == read


def test_records_and_ends_of_other_partitions_are_left_out() -> None:
    read = fetched(upsert(0, 1, 1), Signal("shop.progress", "progress", 4), upsert(9, 2, 2, partition=1))
    read.positions[Partition("shop.control", 0)] = 7
    found = piece_of(read, {OTHER: 0})
    assert found.positions == {OTHER: 10}
    assert [record.offset for record in found.records] == [9]
    assert piece_of(read, {}) == EMPTY


def test_records_behind_the_ends_are_left_out() -> None:
    read = fetched(*(upsert(number, 1, number + 1) for number in range(5, 9)), upsert(3, 2, 9, partition=1))
    found = piece_of(read, {PARTITION: 5, OTHER: 0}, {PARTITION: 7, OTHER: 9})
    assert found.positions == {PARTITION: 7, OTHER: 4}
    assert [record.offset for record in found.records] == [5, 6, 3]


def test_a_piece_names_the_partitions_that_are_lost() -> None:
    read = Fetched([], {}, False, {PARTITION: "deleted", Partition("shop.control", 0): "deleted"})
    assert piece_of(read, {PARTITION: 3}).lost == [(TOPIC, 0, "deleted")]


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_bytes_that_are_no_piece_are_an_error(content: bytes) -> None:
    row = pa.RecordBatch.from_arrays([[0], [0], pa.array([content])], schema=piece.SCHEMA)
    with pytest.raises(ValueError):
        list(to_pieces(iter([row])))


def test_a_large_piece_becomes_rows_of_limited_size() -> None:
    """Seen: a piece of large rows was one row of many megabytes, and Spark's Java process ran out of memory."""
    partitions = [PiecePartition("a", 0, 5, 30), PiecePartition("b", 1, 0, 99)]
    sizes = [(0, 10, 10), (1, 90, 10), (1, 92, 500), (0, 20, 10), (0, 21, 10)]
    records = [PieceRecord(partition, offset, b"", b"x" * size, 0) for partition, offset, size in sizes]
    whole = Piece(partitions, records, is_full=False, lost=[("b", 2, "gone")])
    parts = [*parts_of(whole, 25)]
    assert [[record.offset for record in part.records] for part in parts] == [[10, 90], [92], [20, 21]]
    assert [part.positions for part in parts[:2]] == [
        {Partition("a", 0): 11, Partition("b", 1): 91},
        {Partition("b", 1): 93},
    ]
    assert (parts[-1].positions, parts[-1].lost, parts[-1].is_full) == (whole.positions, whole.lost, False)
    assert [part.partition(record) for part in parts for record in part.records] == list(map(whole.partition, records))
    assert all(read.start_offset in (5, 0) and part.is_full for part in parts[:2] for read in part.partitions)
    assert [*parts_of(whole)] == [whole] and [*parts_of(EMPTY)] == [EMPTY]


def test_pieces_that_follow_each_other_are_joined_with_their_records_in_order() -> None:
    starts = {PARTITION: 5, OTHER: 30}
    gone = Fetched([], {}, is_full=False, lost={OTHER: "the topic was deleted"})
    pieces = [
        piece_of(fetched(upsert(7, 1, 1), is_full=True), starts),
        EMPTY,
        piece_of(fetched(upsert(40, 2, 2, partition=1), upsert(8, 1, 3)), starts),
        piece_of(gone, starts),
        piece_of(fetched(end=11), starts),
    ]
    whole = joined(pieces)
    assert [(whole.partition(record), record.offset) for record in whole.records] == [
        (PARTITION, 7),
        (OTHER, 40),
        (PARTITION, 8),
    ]
    assert whole.partitions == [PiecePartition(TOPIC, 0, 5, 11), PiecePartition(TOPIC, 1, 30, 41)]
    assert whole.lost == [(*OTHER, "the topic was deleted")] and not whole.is_full
    assert joined(pieces[:1]) is pieces[0]

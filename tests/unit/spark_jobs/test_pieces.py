"""A batch that was listed, in pieces."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs import pieces as module
from spark_jobs.pieces import Span, listed, listed_bytes_max, pieces, spans

LISTED_MAX = 10
Record = tuple[str, int, int, int]  # topic, partition, offset, size


class Topics:
    """What lies in the topics, and which spans were read of it."""

    def __init__(self, *records: Record) -> None:
        self.records = records
        self.read_spans: list[list[Span]] = []

    def listing(self) -> pa.Table:
        return pa.table(
            {
                **_table([*self.records], LISTED_MAX),
                "size": pa.array([size for *_, size in self.records], pa.int32()),
            }
        )

    def read(self, wanted: Sequence[Span]) -> pa.Table:
        self.read_spans.append([*wanted])
        found = [
            record
            for span in wanted
            for record in self.records
            if record[:2] == span[:2] and span.start <= record[2] < span.end
        ]
        return pa.table(_table(found))

    def pieces(self, bytes_max: int) -> list[list[tuple[int, int]]]:
        """(offset, bytes of the value) of each record of each piece."""
        return [
            [
                (offset, len(value))
                for offset, value in zip(
                    piece.column("offset").to_pylist(), piece.column("value").to_pylist(), strict=True
                )
            ]
            for piece in pieces(self.listing(), LISTED_MAX, bytes_max, self.read)
        ]


def _table(records: Sequence[Record], listed_max: int | None = None) -> dict[str, pa.Array]:
    values = [None if listed_max is not None and size > listed_max else b"x" * size for *_, size in records]
    return {
        "value": pa.array(values, pa.binary()),
        "topic": pa.array([topic for topic, *_ in records], pa.string()),
        "partition": pa.array([partition for _, partition, *_ in records], pa.int32()),
        "offset": pa.array([offset for *_, offset, _ in records], pa.int64()),
    }


def test_small_records_are_one_piece_and_read_once() -> None:
    topics = Topics(("a", 0, 5, 10), ("a", 1, 0, 3))
    assert topics.pieces(100) == [[(5, 10), (0, 3)]]
    assert topics.read_spans == []


def test_nothing_has_no_piece() -> None:
    assert Topics().pieces(100) == []


def test_a_piece_with_a_large_record_is_read_whole_from_the_first_to_the_last_of_each_partition() -> None:
    topics = Topics(("a", 0, 5, 10), ("a", 0, 9, 11), ("a", 1, 0, 3), ("b", 0, 7, 1))
    assert topics.pieces(100) == [[(5, 10), (9, 11), (0, 3), (7, 1)]]
    assert topics.read_spans == [[Span("a", 0, 5, 10), Span("a", 1, 0, 1), Span("b", 0, 7, 8)]]


def test_pieces_are_bounded_in_bytes_and_keep_the_order() -> None:
    topics = Topics(*(("a", 0, offset, 30) for offset in range(5)))
    assert topics.pieces(60) == [[(0, 30), (1, 30)], [(2, 30), (3, 30)], [(4, 30)]]
    assert topics.read_spans == [[Span("a", 0, 0, 2)], [Span("a", 0, 2, 4)], [Span("a", 0, 4, 5)]]


def test_a_record_that_is_larger_than_a_piece_is_alone() -> None:
    topics = Topics(("a", 0, 0, 1), ("a", 0, 1, 500), ("a", 0, 2, 1))
    assert topics.pieces(100) == [[(0, 1)], [(1, 500)], [(2, 1)]]
    assert topics.read_spans == [[Span("a", 0, 1, 2)]]


def test_a_piece_is_read_by_jobs_of_bounded_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was listed whole is not read again."""
    monkeypatch.setattr(module, "READ_BYTES_MAX", 20)
    topics = Topics(("a", 0, 0, 15), ("a", 0, 1, 5), ("a", 0, 2, 9), ("a", 0, 3, 9), ("a", 1, 0, 20))
    assert topics.pieces(100) == [[(0, 15), (1, 5), (2, 9), (3, 9), (0, 20)]]
    assert topics.read_spans == [[Span("a", 0, 0, 2)], [Span("a", 1, 0, 1)]]


def test_compaction_between_listing_and_reading_is_no_error() -> None:
    topics = Topics(("a", 0, 0, 50), ("a", 0, 1, 50))
    found = pieces(topics.listing(), LISTED_MAX, 1000, lambda wanted: topics.read(wanted).slice(1))
    assert [piece.column("offset").to_pylist() for piece in found] == [[1]]


def test_spans_reach_over_what_lies_between() -> None:
    records = pa.table(_table([("a", 0, 3, 1), ("a", 0, 8, 1), ("b", 0, 0, 1)]))
    assert spans(records) == [Span("a", 0, 3, 9), Span("b", 0, 0, 1)]


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        ({"a": (0, 10)}, {"a": (5, 15)}, 100),  # ten records
        ({}, {"a": (4, 6)}, 100),  # they may begin anywhere
        ({"a": (5,)}, {"a": (5, 10)}, 100),  # a partition that is new
        ({"a": (5,), "gone": (7,)}, {"a": (15,)}, 100),
        ({"a": (9,)}, {"a": (5,)}, 1000),  # nothing that could be read
        ({}, {"a": (1000,)}, 50),  # no more than may be in a batch
    ],
)
def test_the_more_records_the_smaller_are_those_that_are_listed_whole(
    begins: dict[str, tuple[int, ...]], ends: dict[str, tuple[int, ...]], expected: int
) -> None:
    assert listed_bytes_max(1000, begins, ends, 20) == expected


def test_a_listing_has_sizes_and_what_is_small(spark: SparkSession) -> None:
    schema = "key binary, value binary, topic string, partition int, offset bigint, headers string"
    batch = spark.createDataFrame(
        [
            (bytearray(b"12"), bytearray(b"345"), "a", 0, 1, None),
            (bytearray(b"12"), bytearray(b"3456"), "a", 0, 2, None),
            (bytearray(b"12"), None, "a", 0, 3, "tombstone"),
        ],
        schema,
    )
    assert listed(batch, 5).to_pylist() == [
        {"key": b"12", "value": b"345", "topic": "a", "partition": 0, "offset": 1, "headers": None, "size": 5},
        {"key": None, "value": None, "topic": "a", "partition": 0, "offset": 2, "headers": None, "size": 6},
        {"key": b"12", "value": None, "topic": "a", "partition": 0, "offset": 3, "headers": "tombstone", "size": 2},
    ]

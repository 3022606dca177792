"""Rows of a topic, and which rows of the table differ from them."""

from contextlib import closing

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.row_digests import RowDigests
from cdc.kafka.topic_rows import TopicRows
from cdc.model.events import Column
from tests.support import wire

SCHEMA, RELATION = wire.schema_and_relation(
    (Column("id", 23, -1, "integer", False), Column("v", 25, -1, "text", True)), ["id"]
)
CONTEXT = EnvelopeContext("shop", "shop", 1, "0")


def line(number: int, value: str = "x") -> bytes:
    return wire.copy_line([str(number), value])


def record(number: int, value: str = "x") -> tuple[bytes, bytes]:
    encoder = TableEncoder(SCHEMA, RELATION, CONTEXT)
    encoder.start_chunk(1_000, 1)
    key, made, _ = encoder.copy_row(line(number, value), 1_000, 0, 1, 1)
    assert made is not None
    return key, made


def noted(rows: TopicRows, *records: tuple[bytes, bytes | None]) -> None:
    rows.note({key: rows.digest(value) for key, value in records})


def test_rows_that_the_topic_has_are_left_out_and_keys_that_no_chunk_had_remain() -> None:
    with closing(TopicRows(RowDigests(SCHEMA, CONTEXT))) as rows:
        noted(rows, *(record(number) for number in range(2_500)))
        noted(rows, record(3, "changed"), (record(4)[0], None))
        noted(rows, record(5), record(6, "other"))
        noted(rows, record(6))
        assert rows.count() == 2_499
        differing = rows.differing([line(1), line(2, "y"), line(3), line(4), line(5), line(6), line(9_999), b"no row"])
        assert differing == (line(2, "y"), line(3), line(4), line(9_999), b"no row")
        unmet = list(rows.unmet())
        assert unmet == sorted(unmet)
        assert set(unmet) == {record(number)[0] for number in range(2_500)} - {record(n)[0] for n in range(1, 7)}


def test_a_row_that_was_deleted_and_came_back_is_there() -> None:
    with closing(TopicRows(RowDigests(SCHEMA, CONTEXT))) as rows:
        noted(rows, record(1))
        noted(rows, (record(1)[0], None))
        noted(rows, record(1, "again"))
        assert rows.differing([line(1), line(1, "again")]) == (line(1),)
        assert list(rows.unmet()) == []


def test_an_empty_topic_has_nothing() -> None:
    with closing(TopicRows(RowDigests(SCHEMA, CONTEXT))) as rows:
        noted(rows)
        assert rows.differing([line(1)]) == (line(1),)
        assert (rows.count(), list(rows.unmet())) == (0, [])

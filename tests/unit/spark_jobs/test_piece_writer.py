"""How a task's pieces are written: one after the other, each decoded while the store takes the one before."""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.formats.wire_format import head
from cdc.kafka.record_decoding import RecordReader
from cdc.model.errors import UnknownIdError
from cdc.model.events import Column, pack_version
from cdc.model.rejected_rows import RejectedRow
from sinks.contract import Change, Result
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.piece_writer import PieceWriter
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece
from spark_jobs.task_report import TaskReport
from tests.unit.spark_jobs.records import OTHER, PARTITION, FakeTarget, Record, catalog, job, piece, schema, upsert


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def writer(executor: Executor, target: FakeTarget) -> tuple[PieceWriter, TaskReport]:
    report, made = TaskReport(), job()
    return PieceWriter(target, catalog(), report, Rejections(made.section, 1, {}), executor, RecordReader(None)), report


def write(executor: Executor, target: FakeTarget, pieces: Iterable[Piece]) -> TaskReport:
    made, report = writer(executor, target)
    for read in pieces:
        made.write(read)
    made.finish()
    return report


class WaitingTarget(FakeTarget):
    """Takes its first piece until the second one was read."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = threading.Event()
        self.orders: list[list[int]] = []

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        assert self.was_read.wait(30), "the next piece is read while the store takes this one"
        self.orders.append([change.version for change in changes])
        return super().apply(changes)


def test_a_piece_is_read_while_the_store_takes_the_one_before_and_written_after_it(executor: Executor) -> None:
    target = WaitingTarget()

    def pieces() -> Iterator[Piece]:
        yield piece(upsert(0, 1, 1), is_full=True)
        target.was_read.set()
        yield piece(upsert(1, 1, 2))

    report = write(executor, target, pieces())
    assert target.orders == [[pack_version(1, 1)], [pack_version(1, 2)]]
    assert (report.records, report.written, report.end_offsets) == (2, 2, {PARTITION: 2})


def test_what_the_store_has_not_taken_yet_is_not_reported(executor: Executor) -> None:
    target = WaitingTarget()
    made, report = writer(executor, target)
    made.write(piece(upsert(0, 1, 1)))
    assert (report.end_offsets, report.records) == ({}, 0)
    target.was_read.set()
    made.finish()
    assert (report.end_offsets, report.records) == ({PARTITION: 1}, 1)


def test_a_piece_that_the_store_fails_to_take_is_not_counted_and_nothing_after_it_is_written(
    executor: Executor,
) -> None:
    target = FakeTarget()
    target.error = SinkError("the store is away", "start it")
    made, report = writer(executor, target)
    made.write(piece(upsert(0, 1, 1), is_full=True))
    with pytest.raises(SinkError, match="the store is away"):
        made.write(piece(upsert(1, 2, 2)))
    made.finish()
    assert (report.end_offsets, report.records, target.held) == ({}, 0, {})


def test_a_record_that_is_refused_does_not_hide_what_the_store_took_before(executor: Executor) -> None:
    made, report = writer(executor, FakeTarget())
    made.write(piece(upsert(0, 1, 1), is_full=True))
    made.write(piece(Record(1, 2, 2, b"[]")))
    made.write(piece(upsert(2, 3, 3), upsert(0, 4, 4, partition=1)))
    made.finish()
    assert (report.end_offsets, report.written) == ({PARTITION: 1, OTHER: 1}, 2)
    assert report.blocked.keys() == {PARTITION}


class ParticularTarget(FakeTarget):
    """Can't convert the rows of some keys."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        for change in changes:
            if change.key["id"] in (2, 3, 7):
                raise TypeError(f"secret {change.row}")
        return super().apply(changes)


@pytest.mark.parametrize("count", [9, 2])
def test_a_value_that_the_store_s_client_can_t_convert_is_its_row_s_matter(executor: Executor, count: int) -> None:
    target = ParticularTarget()
    report = write(executor, target, [piece(*(upsert(number, number + 1, number + 1) for number in range(count)))])
    assert report.end_offsets == {PARTITION: count}
    bad = {2, 3, 7} & set(range(1, count + 1))
    assert target.held.keys() == set(range(1, count + 1)) - bad
    dead_letters = {
        dead_letter.key["id"]: dead_letter.reason
        for dead_letter in report.dead_letters.values()
        if isinstance(dead_letter, RejectedRow)
    }
    assert dead_letters.keys() == bad
    assert all("TypeError in test_piece_writer.py, line" in reason for reason in dead_letters.values()), dead_letters
    assert "secret" not in str(dead_letters)


def test_a_record_whose_schema_the_registry_lacks_blocks_its_partition_only(executor: Executor) -> None:
    target = FakeTarget()
    known, unknown = upsert(0, 1, 1), upsert(1, 2, 2)
    unknown._value = head(9) + b"\x02"
    behind, elsewhere = upsert(2, 3, 3), upsert(0, 4, 4, partition=1)
    registry = RecordReader(SchemaRegistryConfig(url="http://registry"))
    registry._open = refuse  # type: ignore[method-assign]
    report, made = TaskReport(), job()
    with_registry = PieceWriter(target, catalog(), report, Rejections(made.section, 1, {}), executor, registry)
    with_registry.write(piece(known, unknown, behind, elsewhere))
    with_registry.finish()
    assert sorted(target.held) == [1, 4]
    assert report.end_offsets[PARTITION] == 1, "the next task begins at the record"
    blocked = report.blocked[PARTITION]
    assert "no schema with id 9" in blocked.reason
    assert f"{PARTITION.topic}, partition {PARTITION.number}, offset 1" in blocked.reason
    assert (blocked.next, blocked.may_follow) == ("restore it", True)


def test_an_id_that_means_another_schema_now_stops_the_table_instead_of_giving_columns_other_names(
    executor: Executor,
) -> None:
    """Seen: a registry was restored from an older copy, and the id of a table's schema given to one of the same layout.
    Its records were read with the names of the other one, and values were stored as those of other columns, or NULL."""
    two = replace(schema(), columns=(*schema().columns, Column("name", 25, -1, "text", True, "b", 25)))
    record = upsert(0, 1, 1)
    record._value = head(9) + b"\x02"
    source = {"schema": "public", "table": "a", "epoch": 1, "seq": 1, "schema_version": 1}

    def writer_of(names: Sequence[str]) -> tuple[PieceWriter, FakeTarget]:
        value = json.dumps({"op": "c", "after": dict.fromkeys(names, 1), "source": source}).encode()
        registry, target = RecordReader(SchemaRegistryConfig(url="http://registry")), FakeTarget()
        registry._open = lambda schema_id: lambda _: value  # type: ignore[method-assign] # noqa: ARG005
        known = catalog(SchemaHistory((two,)))
        return PieceWriter(target, known, TaskReport(), Rejections(job().section, 1, {}), executor, registry), target

    made, target = writer_of(["id", "name"])
    made.write(piece(record))
    made.finish()
    assert target.held.keys() == {1}
    made, target = writer_of(["id", "phone"])
    made.write(piece(record))
    made.finish()
    (blocked,) = made._report.blocked.values()
    assert "does not have the columns of public.a, schema version 1" in blocked.reason and target.held == {}
    assert "was not restored from an older copy" in blocked.next and not blocked.may_follow


def refuse(schema_id: int) -> Any:
    raise UnknownIdError(f"no schema with id {schema_id}", "restore it")


def test_a_record_of_a_registry_without_the_section_ends_its_partition(executor: Executor) -> None:
    """Also another program's bytes that begin with a zero byte."""
    record = upsert(0, 1, 1)
    record._value = head(9) + b"\x02"
    (blocked,) = write(executor, FakeTarget(), [piece(record)]).blocked.values()
    assert "kafka.schema_registry is not configured" in blocked.reason and not blocked.may_follow

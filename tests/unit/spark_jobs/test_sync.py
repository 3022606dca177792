"""A batch, and the time between batches, on a fake store."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from cdc.control import ProgressRecord, SinkRecord, SweepRecord
from cdc.errors import RefusedError, SinkError
from cdc.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change, Outcome, Result, StoredRow
from sinks.lineage import Lineage
from spark_jobs.applied import AppliedPosition
from spark_jobs.control_reader import News
from spark_jobs.sync import GENERATION_CHECK_S, Ended, SinkSync, World

NO_NEWS = News((), (), ())


def schema(name: str = "a") -> TableSchema:
    columns = (Column("id", 20, -1, "bigint", False, "b", 20),)
    return TableSchema(TableId("public", name), 1, 16385, columns, ("id",), f"shop.public.{name}")


class FakeSink:
    """Writes what is newer; says in `calls` what was done, in order."""

    name = "search"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.held: dict[int, int] = {}
        self.applied: list[Change] = []
        self.marker: int | None = 1
        self.refused: int | None = None

    def generation(self) -> int | None:
        self.calls.append("generation")
        return self.marker

    def begin_generation(self, generation: int) -> None:
        self.marker = generation

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        versions = [str(known.version) for known in (*earlier, schema)]
        self.calls.append(f"prepare {schema.table.name} {' '.join(versions)}")

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        self.calls.append("apply")
        self.applied += changes
        return [self._apply(change) for change in changes]

    def _apply(self, change: Change) -> Result:
        number = change.key["id"]
        if number == self.refused:
            return Result(Outcome.REJECTED, "column id: too odd")
        if self.held.get(number, -1) >= change.version:
            return Result(Outcome.STALE)
        self.held[number] = change.version
        return Result(Outcome.WRITTEN)

    def sweep(self, table: TableId, floor: int) -> int:
        self.calls.append(f"sweep {table.name} {floor}")
        return 0

    def make_readable(self) -> None:
        self.calls.append("readable")

    def rows(self, _: TableId) -> Iterator[StoredRow]:
        raise AssertionError("a job reads no rows")

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Bench:
    """A SinkSync with all that it touches."""

    calls: list[str] = field(default_factory=list)
    news: list[News] = field(default_factory=list)
    published: list[SinkRecord] = field(default_factory=list)
    now_us: int = 1_000_000
    maintained: int = 0

    def __post_init__(self) -> None:
        self.sink = FakeSink(self.calls)
        world = World(self, self._publish, lambda: self.now_us)
        self.sync = SinkSync(self.sink, 1, AppliedPosition(), world, self._maintain)
        self.sync.begin([Lineage((schema(),))])
        self.admission = self.sync.admit()
        self.calls.clear()

    def read(self) -> News:
        self.calls.append("read control")
        return self.news.pop(0) if self.news else NO_NEWS

    def _publish(self, record: SinkRecord) -> None:
        self.calls.append("publish")
        self.published.append(record)

    def _maintain(self) -> None:
        self.maintained += 1

    def batch(self, *records: tuple[Any, ...], end: int | None = None, topic: str = "shop.public.a") -> None:
        ends = {topic: (end if end is not None else len(records),)}
        self.sync.apply_batch(self.admission, lambda: [arrow(records, topic)], ends)


def arrow(records: Sequence[tuple[Any, ...]], topic: str = "shop.public.a") -> pa.Table:
    """As Spark's Kafka source gives them; a record is (key, value or None, seq)."""
    rows = [
        {
            "key": json.dumps({"id": number}).encode(),
            "value": value,
            "topic": topic,
            "partition": 0,
            "offset": 100 + place,
            "headers": [{"key": "watershed.version", "value": str(pack_version(1, seq)).encode()}]
            if not value
            else None,
        }
        for place, (number, value, seq) in enumerate(records)
    ]
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    fields = [("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string())]
    return pa.Table.from_pylist(
        rows, pa.schema([*fields, ("partition", pa.int32()), ("offset", pa.int64()), ("headers", header)])
    )


def upsert(number: int, seq: int) -> tuple[int, bytes, int]:
    source = {"schema": "public", "table": "a", "epoch": 1, "seq": seq, "schema_version": 1}
    return number, json.dumps({"op": "c", "after": {"id": number}, "source": source}).encode(), seq


def tombstone(number: int, seq: int) -> tuple[int, None, int]:
    return number, None, seq


def progress(lsn: int, end: int) -> ProgressRecord:
    ends = {"shop.public.a": (end,)}
    return ProgressRecord(epoch=1, seq=0, lsn=lsn, commit_ts_us=5, published_ts_us=0, end_offsets=ends)


def test_a_batch_is_published_after_it_is_readable_and_the_store_was_checked() -> None:
    bench = Bench()
    bench.batch(upsert(1, 1))
    assert bench.calls == ["read control", "apply", "readable", "generation", "publish"]


def test_pieces_are_written_one_after_the_other_and_readable_and_published_together() -> None:
    bench = Bench(news=[News((progress(500, 3),), (), ())])
    read: list[int] = []

    def pieces() -> Iterator[pa.Table]:
        for seq in (1, 2, 3):
            read.append(bench.calls.count("apply"))
            yield arrow([upsert(1, seq)] if seq != 2 else [])  # compaction left nothing of the second

    bench.sync.apply_batch(bench.admission, pieces, {"shop.public.a": (3,)})
    assert bench.calls == ["read control", "apply", "apply", "readable", "generation", "publish"]
    assert read == [0, 1, 1], "what was read before is written before more is read"
    assert (bench.published[-1].written, bench.published[-1].applied_lsn) == (2, 500)


def test_a_batch_that_fails_between_pieces_is_not_applied() -> None:
    bench = Bench(news=[News((progress(500, 2),), (), ())])

    def pieces() -> Iterator[pa.Table]:
        yield arrow([upsert(1, 1)])
        raise SinkError("the broker is away", "wait")

    before = len(bench.published)
    with pytest.raises(SinkError, match="away"):
        bench.sync.apply_batch(bench.admission, pieces, {"shop.public.a": (2,)})
    assert bench.published[before:] == [] and bench.sync.batches == 0
    bench.batch(upsert(1, 1), upsert(1, 2))
    assert (bench.published[-1].applied_lsn, bench.published[-1].written) == (500, 2)


def test_what_was_applied_is_counted_and_published() -> None:
    bench = Bench(news=[News((progress(500, 4),), (), ())])
    bench.batch(upsert(1, 1), upsert(1, 2), upsert(2, 3), tombstone(2, 4))
    record = bench.published[-1]
    assert (record.written, record.stale, record.end_offsets) == (2, 2, {"shop.public.a": (4,)})
    assert (record.applied_lsn, record.epoch, record.commit_ts_us) == (500, 1, 5)
    bench.batch(upsert(1, 2), end=5)
    assert (bench.published[-1].written, bench.published[-1].stale) == (2, 3)


def test_a_batch_of_markers_only_moves_the_position_without_the_store() -> None:
    bench = Bench()
    bench.batch(end=7)
    assert bench.calls == ["read control", "publish"]
    assert bench.published[-1].end_offsets == {"shop.public.a": (7,)}


def test_control_is_read_before_records_are() -> None:
    """A table's new schema version is in control before its first record is in the topic."""
    bench = Bench(news=[News((), (), (Lineage((schema("b"),)),))])
    bench.batch(upsert(1, 1))
    assert bench.calls[:3] == ["read control", "prepare b 1", "apply"]
    assert bench.sync.topics == {"shop.public.a", "shop.public.b"}


def test_a_new_version_is_prepared_with_those_before_and_older_rows_get_its_shape() -> None:
    first = schema()
    second = replace(first, version=2, columns=(*first.columns, Column("name", 25, -1, "text", True, "b", 25)))
    bench = Bench(news=[News((), (), (Lineage((first, second)),))])
    bench.batch(upsert(1, 1))
    assert bench.calls[:3] == ["read control", "prepare a 1 2", "apply"]
    assert bench.sink.applied[0].row == {"id": 1, "name": None}
    assert bench.sync.topics == {"shop.public.a"}, "the query goes on"


def test_a_due_sweep_is_done_before_the_position_is_published() -> None:
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(news=[News((progress(300, 1), progress(500, 1)), (sweep,), ())])
    bench.batch(upsert(1, 1))
    assert bench.calls[-4:] == ["generation", "sweep a 9", "readable", "publish"]
    assert bench.published[-1].sweeps == {"public.a": 9}
    assert bench.published[-1].applied_lsn == 500


def test_a_store_whose_data_was_deleted_is_not_reported_on() -> None:
    bench = Bench()
    bench.sink.marker = None
    published = len(bench.published)
    with pytest.raises(SinkError, match="no longer holds generation 1"):
        bench.batch(upsert(1, 1))
    assert len(bench.published) == published
    assert isinstance(bench.sync.failure, SinkError)


def test_a_refused_row_stops_the_sink_and_is_named_without_its_key() -> None:
    bench = Bench()
    bench.sink.refused = 777777
    with pytest.raises(RefusedError) as refused:
        bench.batch(upsert(1, 1), upsert(777777, 2))
    said = str(refused.value)
    for part in ("search", "public.a", "column id: too odd", "shop.public.a, partition 0, offset 101", "digest"):
        assert part in said
    assert "777777" not in said


@pytest.mark.parametrize("value", [b"not json", b'{"op":"c"}', b'{"op":"x","source":{}}'])
def test_a_record_that_capture_did_not_write_stops_the_sink(value: bytes) -> None:
    bench = Bench()
    with pytest.raises(RefusedError, match=r"search: record at shop\.public\.a, partition 0, offset 100"):
        bench.batch((1, value, 1))


def test_a_batch_of_a_query_that_was_dismissed_is_not_begun() -> None:
    bench = Bench()
    bench.sync.dismiss()
    with pytest.raises(Ended):
        bench.batch(upsert(1, 1))
    bench.sync.admit()
    with pytest.raises(Ended):
        bench.batch(upsert(1, 1))
    assert bench.calls == [] and bench.sync.failure is None


def test_between_batches_news_are_taken_in_and_published_once() -> None:
    bench = Bench(news=[News((progress(500, 0),), (), ())])
    assert bench.sync.tend(1)
    assert bench.sync.tend(1)
    assert bench.calls.count("publish") == 1
    assert bench.published[-1].applied_lsn == 500
    assert bench.maintained == 2


def test_the_store_is_checked_every_few_seconds() -> None:
    bench = Bench()
    bench.sync.tend(1)
    assert "generation" not in bench.calls
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000) + 1
    bench.sink.marker = 2
    with pytest.raises(SinkError, match="its data was deleted"):
        bench.sync.tend(1)


def test_tending_does_not_wait_for_a_long_batch() -> None:
    bench = Bench()
    tended: list[bool] = []

    def read() -> Iterator[pa.Table]:
        tended.append(bench.sync.tend(0.01))
        yield arrow([(1, None, 1)])

    bench.sync.apply_batch(bench.admission, read, {})
    assert tended == [False]


def test_the_beginning_of_a_generation_is_published() -> None:
    """So that a waiter waits for it, and not for the last one."""
    bench = Bench()
    (first,) = bench.published
    assert (first.generation, first.applied_lsn, first.end_offsets) == (1, 0, {})

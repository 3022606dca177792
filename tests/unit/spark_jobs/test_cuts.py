"""A transactional SQL sink: batches that go from cut to cut, on a SQLite file, with scripted reading."""

import itertools
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest import mock

import pytest
from pydantic import SecretStr

from cdc.config.settings import KafkaConfig
from cdc.config.stores import SqlConfig
from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import Column, TableId, TableSchema, pack_version
from cdc.model.sink_records import SinkRecord
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.schema_history import SchemaHistory
from sinks.sql.sink import SqlSink
from sinks.sql.staged import StagedPieces
from spark_jobs.applied import AppliedPosition, FoundTopic, Offsets
from spark_jobs.batches import BatchReport, OnReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.cuts import PieceStager, StagedBy, TransactionalBatches, stage_pieces
from spark_jobs.publishing import JobEnvironment
from spark_jobs.source.piece import Piece, PiecePartition, PieceRecord
from spark_jobs.starting import LOST_WRITES, parse_position, with_closings_owed
from spark_jobs.sync import SinkSync
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig
from tests.unit.spark_jobs.test_sync import FakeLetters

A, B = "shop.public.a", "shop.public.b"
COLUMNS = (Column("id", 20, -1, "bigint", False, "b", 20), Column("v", 20, -1, "bigint", True, "b", 20))


def schema(name: str) -> TableSchema:
    return TableSchema(TableId("public", name), 1, 16385, COLUMNS, ("id",), f"shop.public.{name}")


HISTORIES = {schema(name).topic: SchemaHistory((schema(name),)) for name in ("a", "b")}
JOB = (1, "x")
_NUMBERS = itertools.count()  # of batches: no two have the same name


def cut(lsn: int, a: int, b: int, *, is_cut: bool = True) -> ProgressRecord:
    return ProgressRecord(
        epoch=1, seq=0, lsn=lsn, commit_ts_us=1, published_ts_us=0, end_offsets={A: (a,), B: (b,)}, is_cut=is_cut
    )


def upsert(table: str, number: int, value: int, seq: int) -> PieceRecord:
    source = {"schema": "public", "table": table, "epoch": 1, "seq": seq, "schema_version": 1}
    record = {"op": "u", "before": None, "after": {"id": number, "v": value}, "source": source}
    return PieceRecord(0, 0, json.dumps({"id": number}).encode(), json.dumps(record).encode(), 1)


class Store:
    """A SinkSync on a SQLite file. `log` has the records of both topics; a batch reads up to the published cut."""

    def __init__(
        self, path: Path, start: SinkRecord | None = None, log: dict[str, list[PieceRecord]] | None = None
    ) -> None:
        self.url = f"sqlite:///{path}"
        self.path = path
        self.config = SqlConfig.model_validate(
            {"url": SecretStr(self.url), "consistency": "transactional", "own_schema": "w"}
        )
        self.job = SinkTaskConfig("sql", KafkaConfig(bootstrap_servers="127.0.0.1:1"), self.config, "shop", 1, slot="")
        self.sql = SqlSink.open(self.config, "shop", Retries(attempt_count_max=1), "sql")
        self.log: dict[str, list[PieceRecord]] = {A: [], B: []} if log is None else log
        self.ends: dict[str, int] | None = None  # up to which the next batch reads, instead of the cut
        self.update: list[ControlUpdate] = []
        self.sinks: dict[str, SinkRecord] = {}
        self.published: list[SinkRecord] = []
        self.letters = FakeLetters([])
        if self.sql.generation() is None:
            self.sql.begin_generation(1)
        self.staging = TransactionalBatches(self.job, JOB, lambda _: None, self.sql, self.sql)
        clients: Any = self
        environment = JobEnvironment(
            self.sql,
            1,
            clients,
            clients,
            cast("Any", self.letters),
            lambda record: record,
            self._publish,
            lambda: 5,
            lambda _: False,
            JOB,
            100,
            at_cuts=True,
            transactional=clients,
        )
        self.sync = SinkSync(environment, AppliedPosition() if start is None else AppliedPosition.of(start))
        self.sync.housekeeper.begin(list(HISTORIES.values()))
        self.query = self.sync.state.start_query()

    def _publish(self, record: SinkRecord) -> None:
        self.published.append(record)
        self.sinks[record.record_key] = record

    def read(self) -> ControlUpdate:
        return self.update.pop(0) if self.update else ControlUpdate((), (), ())

    # ---- TransactionalBatches: what Spark would do is done here

    is_live = False

    def set_tables(self, histories: Mapping[str, SchemaHistory]) -> None:
        self.staging.set_tables(histories)

    def set_open_dead_letters(self, letters: Mapping[str, int]) -> None:
        self.staging.set_open_dead_letters(letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return {topic: FoundTopic(topic[-1], (len(records),)) for topic, records in self.log.items()}

    def run(self, micro_batch: object, ends: Offsets, take: OnReport) -> BatchReport:
        del micro_batch, ends, take
        last = self.published[-1]
        stager = self.staging._stager(
            self.job, SchemaCatalog("c", HISTORIES), None, f"batch {next(_NUMBERS)}", False, {}
        )
        report = BatchReport()
        planned = [topic for topic in self.log if topic not in last.refused or not last.refused[topic].is_left_out]
        for task, topic in enumerate(planned):
            begin = last.end_offsets.get(topic, (0,))[0]
            end = last.cut_offsets[topic][0] if self.ends is None else self.ends[topic]
            if end > begin:
                report.staged.append(self.stage(stager, task, topic, begin, end))
        return report

    def stage(self, stager: PieceStager, task: int, topic: str, begin: int, end: int) -> StagedBy:
        records = self.log[topic][begin:end]
        for number, record in enumerate(records):
            record.offset = begin + number
            record.partition = 0
        return stage_pieces(
            stager, task, 7, iter([Piece([PiecePartition(topic, 0, begin, end)], records), Piece([], [])])
        )

    def transaction(self) -> Any:
        return self.staging.transaction()

    def merge(self, report: BatchReport) -> BatchReport:
        return self.staging.merge(report)

    # ---- readers

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("BEGIN")
            tables = {"a": "SELECT * FROM public_a", "b": "SELECT * FROM public_b"}
            return {name: sorted(connection.execute(query)) for name, query in tables.items()}

    def saved(self) -> SinkRecord:
        found = parse_position(self.sql.saved_position())
        assert found is not None
        return found

    def publish(self, *progress: ProgressRecord, sweeps: Sequence[SweepRecord] = ()) -> None:
        self.update.append(ControlUpdate(progress, tuple(sweeps), ()))
        self.sync.housekeeper.work()

    def batch(self) -> None:
        self.sync.batch_runner.apply_batch(self.query)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db")
    yield made
    made.sql.close()


def transfers(store: Store, count: int, begin: int = 1) -> None:
    """Each moves one from a row of one table to a row of the other."""
    for seq in range(begin, begin + count):
        store.log[A].append(upsert("a", 1, 100 - seq, 2 * seq))
        store.log[B].append(upsert("b", 1, 100 + seq, 2 * seq + 1))


def test_all_tables_go_from_cut_to_cut_together_with_the_position(store: Store) -> None:
    transfers(store, 3)
    store.publish(cut(100, 2, 2), cut(150, 3, 2, is_cut=False))
    assert store.published[-1].cut_offsets == {A: (2,), B: (2,)}
    assert store.rows() == {"a": [], "b": []}
    store.batch()
    assert store.rows() == {"a": [(1, 98)], "b": [(1, 102)]}
    assert store.saved().end_offsets == {A: (2,), B: (2,)} == store.published[-1].end_offsets
    assert (store.saved().applied_lsn, store.published[-1].applied_lsn) == (100, 100)
    assert (store.published[-1].written, store.published[-1].stale) == (2, 2)
    store.publish(cut(200, 3, 3))
    store.batch()
    assert store.rows() == {"a": [(1, 97)], "b": [(1, 103)]}
    assert store.saved().applied_lsn == 200


@pytest.mark.parametrize("fails_at", ["piece", "sweep", "save_position"])
def test_what_fails_in_the_middle_leaves_the_store_at_the_cut_before(store: Store, fails_at: str) -> None:
    transfers(store, 1)
    store.publish(cut(100, 1, 1))
    store.batch()
    transfers(store, 1, begin=2)
    store.publish(cut(200, 2, 2), sweeps=[sweep("b", 1, 200)])
    before = store.rows(), store.saved()
    target = StagedPieces if fails_at == "piece" else SqlSink
    original = getattr(target, fails_at)
    calls: list[int] = []

    def fail(*given: Any) -> Any:
        calls.append(1)
        if fails_at == "piece" and len(calls) == 1:  # the rows of the first table are written
            return original(*given)
        raise SinkError("gone", "nothing")

    with mock.patch.object(target, fails_at, fail), pytest.raises(SinkError, match="gone"):
        store.batch()
    assert (store.rows(), store.saved()) == before
    assert store.published[-1].applied_lsn == store.sync.state.applied.lsn == 100
    store.batch()
    assert store.rows() == {"a": [(1, 98)], "b": [(1, 102)]}


def test_a_batch_that_ends_elsewhere_is_not_written_and_is_read_again(store: Store) -> None:
    transfers(store, 3)
    store.publish(cut(100, 2, 2))
    for ends in ({A: 2, B: 1}, {A: 3, B: 2}):
        store.ends = ends
        store.batch()
        assert store.rows() == {"a": [], "b": []}
        assert store.saved().end_offsets == {}
    store.ends = None
    store.batch()
    assert store.rows() == {"a": [(1, 98)], "b": [(1, 102)]}


def test_a_cut_stays_the_next_one_until_it_is_reached(store: Store) -> None:
    transfers(store, 3)
    store.publish(cut(100, 1, 1))
    store.publish(cut(200, 2, 2))
    assert store.published[-1].cut_offsets == {A: (1,), B: (1,)}
    store.batch()
    assert store.published[-1].cut_offsets == {A: (2,), B: (2,)}


def sweep(table: str, floor_seq: int, as_of: int) -> SweepRecord:
    return SweepRecord.of(TableId("public", table), pack_version(1, floor_seq), as_of, 1, 0)


def test_a_truncate_is_seen_with_the_rest_of_its_transaction(store: Store) -> None:
    transfers(store, 1)
    store.publish(cut(100, 1, 1))
    store.batch()
    store.log[B].append(upsert("b", 2, 200, 11))  # with TRUNCATE a, whose sweep has number 10
    store.publish(cut(200, 1, 2), sweeps=[sweep("a", 10, 200)])
    assert store.rows()["a"] == [(1, 99)]
    store.batch()
    assert store.rows() == {"a": [], "b": [(1, 101), (2, 200)]}
    # Without a record there is no batch: both tables at once all the same.
    store.publish(cut(300, 1, 2), sweeps=[sweep("a", 20, 300), sweep("b", 21, 300)])
    assert store.rows() == {"a": [], "b": []}
    assert store.saved().applied_lsn == store.published[-1].applied_lsn == 300


@pytest.mark.promise(2)
def test_a_truncate_does_not_wait_for_a_schema_that_is_published_while_its_batch_runs(store: Store) -> None:
    """The table is prepared for it behind the batch; until then rows would be seen that the transaction has removed."""
    transfers(store, 1)
    store.publish(cut(100, 1, 1))
    store.batch()
    store.log[B].append(upsert("b", 2, 200, 11))
    store.publish(cut(200, 1, 2), sweeps=[sweep("a", 10, 200)])
    altered = replace(schema("a"), version=2)
    read = store.run

    def run(*given: Any) -> BatchReport:
        store.update.append(ControlUpdate((), (), (SchemaHistory((schema("a"), altered)),)))
        store.sync.housekeeper.work()
        return read(*given)

    with mock.patch.object(store, "run", run):
        store.batch()
    assert store.rows() == {"a": [], "b": [(1, 101), (2, 200)]}
    assert store.saved().applied_lsn == 200


def test_a_row_that_the_database_refuses_stops_only_itself(store: Store) -> None:
    store.log[A] = [upsert("a", 1, 2**70, 1), upsert("a", 2, 5, 2)]
    store.log[B] = [upsert("b", 1, 6, 3)]
    store.publish(cut(100, 2, 1))
    store.batch()
    assert store.rows() == {"a": [(2, 5)], "b": [(1, 6)]}
    assert len(store.letters.open) == 1
    assert store.saved().dead_letters == 1


@pytest.mark.promise(2)
@pytest.mark.parametrize("fails_at", ["sweep", "save_position"])
@pytest.mark.parametrize("by", ["the batch", "a sweep"])
def test_a_dead_letter_that_is_closed_for_a_row_that_is_not_committed_hides_nothing(
    store: Store, by: str, fails_at: str
) -> None:
    store.log[A] = [upsert("a", 1, 2**70, 1)]
    store.publish(cut(100, 1, 0))
    store.batch()
    assert store.published[-1].rejected == {"public.a": 1}
    others = [sweep("b", 11, 200)]
    if by == "the batch":
        store.log[A].append(upsert("a", 1, 5, 2))
        store.publish(cut(200, 2, 0), sweeps=others)
    original = getattr(SqlSink, fails_at)

    def fail(sink: SqlSink, *given: Any) -> Any:
        if given[0] == TableId("public", "a"):
            return original(sink, *given)
        raise SinkError("gone", "nothing")

    with mock.patch.object(SqlSink, fails_at, fail), pytest.raises(SinkError, match="gone"):
        if by == "the batch":
            store.batch()
        else:
            store.publish(cut(200, 1, 0), sweeps=[sweep("a", 10, 200), *others])
    assert (store.letters.open == {}) == (fails_at == "save_position"), "before the position that says so"
    if by == "the batch":
        store.sync.housekeeper.work()
    else:
        store.batch()
    assert store.published[-1].applied_lsn == 100
    assert store.published[-1].rejected == {"public.a": 1}, (
        "a waiter for 100 must not take the row for one that is there"
    )
    start = with_closings_owed(store.saved(), store.letters.open)
    again = Store(store.path, start, store.log)
    assert again.published[-1].owed == {"public.a": LOST_WRITES}
    again.letters.open = {}
    if by == "the batch":
        again.publish(cut(200, 2, 0))
        again.batch()
        assert again.rows()["a"] == [(1, 5)]
    else:
        again.publish(cut(200, 1, 0), sweeps=[sweep("a", 10, 200)])
    assert (again.published[-1].applied_lsn, again.published[-1].owed) == (200, {})
    again.sql.close()


def test_staged_records_that_are_gone_fail_the_batch(store: Store) -> None:
    transfers(store, 1)
    store.publish(cut(100, 1, 1))
    lost = store.run(None, {}, lambda _: True)
    store.sql.staged.begin("of another job")
    with pytest.raises(SinkError, match="staged are gone"), store.transaction():
        store.merge(lost)
    assert store.rows() == {"a": [], "b": []}


def test_a_task_that_ran_twice_counts_once(store: Store) -> None:
    transfers(store, 1)
    store.publish(cut(100, 1, 1))
    report = store.run(None, {}, lambda _: True)
    stager = store.staging._stager(store.job, SchemaCatalog("c", HISTORIES), None, store.staging._batch, False, {})
    late = stage_pieces(
        stager, 0, 8, iter([Piece([PiecePartition(A, 0, 0, 9)], [])])
    )  # an attempt that Spark has given up
    assert late not in report.staged
    with store.transaction():
        merged = store.merge(report)
    assert (merged.end_offsets, merged.written) == ({A: {0: 1}, B: {0: 1}}, 2)


def test_a_job_continues_at_the_cut_that_the_store_is_at(store: Store) -> None:
    transfers(store, 2)
    store.publish(cut(100, 1, 1))
    store.batch()
    again = Store(store.path, store.saved(), store.log)
    again.publish(cut(100, 1, 1))
    assert again.published[-1].cut_offsets == {A: (1,), B: (1,)}
    again.publish(cut(200, 2, 2))
    again.batch()
    assert again.rows() == {"a": [(1, 98)], "b": [(1, 102)]}
    again.sql.close()


def test_a_store_that_was_not_written_up_to_cuts_is_first_written_beyond_all_that_it_may_have(tmp_path: Path) -> None:
    """The job before may have been killed when it had written more than it has noted."""
    empty = Store(tmp_path / "store.db")
    noted = empty.published[-1].model_copy(update={"end_offsets": {A: (1,), B: (1,)}})
    empty.sql.close()
    with mock.patch.object(Store, "find_topics", lambda _: {A: FoundTopic("a", (3,)), B: FoundTopic("b", (2,))}):
        store = Store(tmp_path / "store.db", noted)
    transfers(store, 3)
    store.publish(cut(100, 2, 2))
    assert store.published[-1].cut_offsets == {}
    store.publish(cut(200, 3, 3))
    assert store.published[-1].cut_offsets == {A: (3,), B: (3,)}
    store.sql.close()


@pytest.mark.promise(2)
def test_no_reader_sees_a_transfer_in_part_whatever_fails(store: Store) -> None:
    """The bank of tests/faults/bank.py without servers: a reader reads all the time, and jobs fail anywhere in a batch,
    are not told whether they have committed, and begin again where the store is."""
    random, over, sums = Random(5), threading.Event(), list[int]()
    store.log[A], store.log[B] = [upsert("a", 1, 100, 0)], [upsert("b", 1, 100, 1)]
    store.publish(cut(1, 1, 1))
    store.batch()

    def read() -> None:
        while not over.is_set():
            sums.append(sum(value for rows in store.rows().values() for _, value in rows))

    reader = threading.Thread(target=read)
    reader.start()
    job, failed = store, 0
    try:
        for number in range(1, 15):
            count = random.randint(1, 5)
            begin = len(store.log[A])
            transfers(store, count, begin)
            target, method = random.choice([(StagedPieces, "piece"), (SqlSink, "save_position"), (SqlSink, "apply")])
            original, left = getattr(target, method), [random.randint(0, 3)]

            def fail(*given: Any, original: Any = original, left: list[int] = left) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise SinkError("killed", "nothing")
                return original(*given)

            try:
                with mock.patch.object(target, method, fail):
                    job.publish(cut(1 + number, begin + count, begin + count))
                    job.batch()
            except SinkError:
                failed += 1
                saved = job.saved()
                job.sql.close()
                job = Store(store.path, saved, store.log)
                job.publish(cut(1 + number, begin + count, begin + count))
        job.batch()
    finally:
        over.set()
        reader.join()
        job.sql.close()
    assert failed >= 3 and len(sums) >= 10
    assert set(sums) == {200}
    assert job.saved().end_offsets == {A: (len(store.log[A]),), B: (len(store.log[B]),)}

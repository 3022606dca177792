"""Several tables, ranges and watermarks at once: what is asked of whom, and what is void."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cdc.model.control import IncompleteRowsRecord, RangeRecord
from cdc.model.errors import SourceError
from cdc.model.events import TableId, TableSchema, pack_version
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import (
    Chunk,
    ChunkRead,
    DescribeTable,
    KeyPage,
    KeysRead,
    Lookup,
    ReadFailed,
    Request,
    TableDescribed,
    TopicRequest,
)
from cdc.snapshots.absent_keys import SNAPSHOT_S
from cdc.snapshots.ranges import RETRY_S
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA
from tests.unit.cdc.snapshots.loops import Beside, key, rows, snapshot, states, sweeps, wanted

CUSTOMERS, ORDERS = SCHEMA.table, TableId("public", "orders")
ORDERS_SCHEMA = replace(SCHEMA, table=ORDERS, oid=11, topic="shop.public.orders")
BOTH = (SCHEMA, ORDERS_SCHEMA)
ALL_READ = RangeRecord(after=None, up_to=None, is_done=True).model_dump()
# Every row is published, and keys of vanished rows are still to be found.
SCANS: dict[str, Any] = {"sweeps": False, "ranges": [ALL_READ], "deletes_in": ALL_READ | {"is_done": False}}


def both(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **limits: Any) -> Beside:
    """Snapshots of both tables behind the barrier."""
    records = wanted(**first or {}), wanted(ORDERS_SCHEMA, **second or {})
    made = Beside(*records, schemas=BOTH, **limits)
    made.pass_barrier(snapshot(50))
    return made


def describe(made: Beside, requests: Iterable[Request | TopicRequest], *bounds: tuple[str, ...]) -> list[TopicRecord]:
    """Answers the descriptions among these requests; returns what their watermarks publish."""
    nonces = [request.nonce for request in requests if isinstance(request, DescribeTable)]
    for nonce in nonces:
        made.engine.take([TableDescribed(nonce, snapshot(60), "shape", 10, 20, bounds, "order")], made.now)
    return made.transaction(900, watermarks=nonces)


def tables(requests: Iterable[Request | TopicRequest], kind: type[Any]) -> list[str]:
    return [request.schema.table.name for request in requests if isinstance(request, kind)]


def page_of(requests: Iterable[Request | TopicRequest]) -> KeyPage:
    """The one request for keys of a topic among these; the others are lookups of tables that wait for their scan."""
    (page,) = (request for request in requests if isinstance(request, KeyPage))
    return page


def fail(made: Beside, nonce: str, *, is_permanent: bool = False) -> None:
    made.engine.take([ReadFailed(nonce, SourceError("the table is locked", "wait"), is_permanent)], made.now)


def places(records: Iterable[TopicRecord]) -> list[tuple[int, int]]:
    """(index in the transaction, seq) of each row."""
    sources = [json.loads(record.value or b"")["source"] for record in records if record.topic == SCHEMA.topic]
    return [(source["tx_index"], source["seq"]) for source in sources]


# ---- records


def test_of_a_tables_records_the_last_request_counts_and_others_are_passed_over() -> None:
    gone: TableSchema = replace(SCHEMA, table=TableId("public", "gone"))
    records = [wanted(request="new", requested_us=2), wanted(request="old", requested_us=1), wanted(gone)]
    incomplete = IncompleteRowsRecord(table_schema="public", table_name="gone", keys=(("1",),))
    made = Beside(*records, holes=[incomplete])
    assert made.engine.owed() == {}
    assert {str(table): job.request for table, job in made.engine.jobs.items()} == {"public.customers": "new"}


def test_a_snapshot_of_which_all_is_published_ends_when_its_table_is_described() -> None:
    made = Beside(wanted(sweeps=False, ranges=[ALL_READ]))
    made.pass_barrier(snapshot(50))
    (ended,) = states(describe(made, made.asks()))
    assert (ended.status, ended.floor) == ("done", None), "without a sweep it has no floor"
    assert not made.engine.is_active
    assert made.engine.waits_for == ""


def test_nothing_is_remembered_after_the_last_snapshot() -> None:
    made = both()
    for (table, schema), xid in zip(((CUSTOMERS, SCHEMA), (ORDERS, ORDERS_SCHEMA)), (70, 71), strict=True):
        made.transaction(xid, 1, 2)
        assert len(made.engine.memory) > 0
        assert made.engine.set_status(table, "cancelled")
        assert made.engine.is_active == (schema is SCHEMA)
    assert len(made.engine.memory) == 0


# ---- requests


def test_a_table_is_read_while_another_is_described() -> None:
    made = both(workers=1)
    first, second = made.asks()
    assert tables([first, second], DescribeTable) == ["customers", "orders"]
    describe(made, [first])
    assert tables(made.asks(), Chunk) == ["customers"]


def test_of_a_paused_table_nothing_is_asked() -> None:
    made = both({"status": "paused"})
    assert tables(made.asks(), DescribeTable) == ["orders"]


def test_chunks_that_wait_for_their_watermark_count_up_to_two_for_each_worker() -> None:
    made = Beside(wanted(), workers=2)
    made.pass_barrier(snapshot(50))
    describe(made, made.asks(), ("10",), ("20",), ("30",))
    first, second = made.asks()
    made.read(first, snapshot(70), 1)
    (third,) = made.asks()
    made.read(second, snapshot(70), 11)
    made.read(third, snapshot(70), 2)
    (fourth,) = made.asks()
    assert isinstance(fourth, Chunk) and fourth.after == ("11",)
    nonce = made.read(fourth, snapshot(70), 12)
    assert made.asks() == []
    made.transaction(901, watermarks=[second.nonce, nonce])
    assert len(made.asks()) == 2


def test_one_topic_is_scanned_at_a_time_and_its_pages_are_its_own() -> None:
    made = both(SCANS, SCANS, workers=4)
    describe(made, made.asks())
    assert made.asks(is_behind=True) == [], "the stream comes first"
    page = page_of(made.asks())
    assert page.topic == SCHEMA.topic
    made.engine.take([KeysRead("unknown", (key(9),), is_end=True)], made.now)
    fail(made, "unknown")
    made.pages(page, 1)
    requests = made.asks()
    assert [one.keys for one in requests if isinstance(one, Lookup) and one.schema is SCHEMA] == [(key(1),)]
    other = page_of(requests)
    assert other.topic == ORDERS_SCHEMA.topic
    made.pages(other, 7)
    (last,) = made.asks()
    assert isinstance(last, Lookup) and last.schema is ORDERS_SCHEMA and last.keys == (key(7),)


def test_a_page_belongs_to_the_table_that_asked_for_it() -> None:
    made = both({}, SCANS)
    describe(made, made.asks())
    page = next(request for request in made.asks() if isinstance(request, KeyPage))
    made.pages(page, 7)
    assert tables(made.asks(), Lookup) == ["orders"]


def test_a_scan_that_failed_for_ever_does_not_hold_up_the_next() -> None:
    made = both(SCANS, SCANS, workers=4)
    describe(made, made.asks())
    page = page_of(made.asks())
    fail(made, page.nonce, is_permanent=True)
    assert [state.status for state in states(made.engine.endings())] == ["failed"]
    other = page_of(made.asks())
    assert other.topic == ORDERS_SCHEMA.topic
    fail(made, other.nonce, is_permanent=True)
    assert not made.engine.is_active


def test_during_a_scan_the_database_was_looked_at_by_the_last_lookup() -> None:
    made = Beside(wanted(**SCANS))
    made.pass_barrier(snapshot(50))
    describe(made, made.asks())
    page = page_of(made.asks())
    made.now += SNAPSHOT_S * 0.8
    made.pages(page, 1, is_end=False)
    lookup = made.ask()
    made.transaction(901, watermarks=[made.look_up(lookup, snapshot(71))])
    assert page_of(made.asks()).scan == page.scan
    made.now += SNAPSHOT_S * 0.8
    assert made.asks() == []
    made.now += SNAPSHOT_S * 0.4
    (empty,) = made.asks()
    assert isinstance(empty, Lookup) and empty.keys == ()


def test_a_failure_that_comes_late_delays_the_next_look_from_then_on() -> None:
    made = both()
    first, _ = made.asks()
    made.now += 10.0
    fail(made, first.nonce)
    made.now += RETRY_S / 2
    assert made.asks() == []
    made.now += RETRY_S
    assert tables(made.asks(), DescribeTable) == ["customers"]


# ---- watermarks


def test_chunks_of_one_transaction_count_on_and_those_of_the_next_begin_again() -> None:
    made = Beside(wanted(), workers=2)
    made.pass_barrier(snapshot(50))
    describe(made, made.asks(), ("10",))
    first, second = made.asks()
    nonces = [made.read(first, snapshot(70), 1, 2), made.read(second, snapshot(70), 11)]
    assert places(made.transaction(901, watermarks=nonces)) == [(0, 1), (1, 2), (2, 3)]
    third, fourth = made.asks()
    assert places(made.transaction(902, watermarks=[made.read(third, snapshot(71), 3)])) == [(0, 4)]
    assert places(made.transaction(903, watermarks=[made.read(fourth, snapshot(71), 12)])) == [(0, 5)]
    assert made.engine._watermarks == []


def test_a_chunk_that_is_void_leaves_others_alone_and_takes_no_place() -> None:
    """Again and again: whatever is void does not count among the chunks that wait."""
    made = both(workers=1, keys_max=5)
    described = made.asks()
    describe(made, described[:1])
    for xid in (75, 76, 77):
        first = made.read(made.ask(), snapshot(70), 1, 2)
        second = made.read(made.ask(), snapshot(70), 3)
        made.transaction(xid, *range(100, 120))
        assert made.transaction(901, watermarks=[first, second]) == []
        made.now += 1
    assert describe(made, described[1:]) == []
    assert made.engine.jobs[ORDERS].fingerprint == "shape", "its description was not void"


def test_of_a_snapshot_that_was_paused_no_chunk_is_published() -> None:
    made = both()
    describe(made, made.asks())
    first, second = made.asks()
    nonces = [made.read(first, snapshot(70), 1), made.read(second, snapshot(70), 2)]
    assert states(made.engine.set_status(CUSTOMERS, "paused"))[0].status == "paused"
    records = made.transaction(901, watermarks=nonces)
    assert rows(records) == []
    assert [(state.table, state.status) for state in states(records)] == [(ORDERS, "running")]
    assert made.engine.set_status(TableId("public", "gone"), "paused") == []


def test_a_sweep_has_a_seq_of_its_own_only_where_nothing_was_published_since_its_floor() -> None:
    """The next row must be above the floor."""
    for changes, seq in (((), 7), ((5,), 7), ((5, 6), 8)):
        made = Beside(wanted(), seq=6)
        made.pass_barrier(snapshot(50))
        describe(made, made.asks())
        if changes:
            made.transaction(80, *changes)
        records = made.transaction(901, watermarks=[made.read(made.ask(), snapshot(90), is_end=True)])
        assert sweeps(records) == [(pack_version(CONTEXT.epoch, 7), made.lsn + 1)]
        assert made.seq == seq


def test_the_time_of_reading_is_no_time_of_waiting() -> None:
    made = Beside(wanted())
    made.pass_barrier(snapshot(50))
    describe(made, made.asks())
    chunk = made.ask()
    made.now += 5.0
    lines = tuple(b"%d\tx" % number for number in range(1_000))
    made.engine.take([ChunkRead(chunk.nonce, snapshot(70), lines, ("999",), False, 5.0)], made.now)
    made.transaction(901, watermarks=[chunk.nonce])
    following = made.ask()
    assert isinstance(following, Chunk) and following.rows_max == 100


# ---- rows that are published again


def test_rows_can_be_published_again_when_the_former_ones_are() -> None:
    made = Beside()
    for number in (1, 2):
        assert made.engine.republish(CUSTOMERS, {(str(number),): key(number)})
        assert made.engine.is_active
        assert made.engine.republish(CUSTOMERS, {("9",): key(9)}) == []
        made.pass_barrier(snapshot(50))
        describe(made, made.asks())
        chunk, lookup = made.asks()
        nonces = [made.read(chunk, snapshot(70), number, is_end=True), made.look_up(lookup, snapshot(70))]
        assert rows(made.transaction(901, watermarks=nonces)) == [number]
        assert not made.engine.is_active

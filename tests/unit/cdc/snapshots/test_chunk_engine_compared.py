"""A snapshot that compares: the topic is read first, chunks come without the rows that it has, and keys that no chunk
had are looked up."""

from dataclasses import replace
from typing import Any

from cdc.model.errors import UnreachableError
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import (
    Chunk,
    ChunkRead,
    Compared,
    DescribeTable,
    KeyPage,
    Lookup,
    ReadFailed,
    ReadTopic,
    Request,
    ScanLostError,
    TableDescribed,
    TopicRead,
    TopicRequest,
)
from cdc.ports.transaction_snapshot import TransactionSnapshot
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import Beside, deletes, key, rows, snapshot, states, sweeps, wanted

OTHER = replace(SCHEMA, table=SCHEMA.table._replace(name="other"), topic="shop.public.other")


def comparing(*bounds: tuple[str, ...], **fields: Any) -> Beside:
    """The table is described, and nothing else is read."""
    made = Beside(wanted(sweeps=False, compares=True, owes="the heal", **fields), seq=6, workers=1)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60), *bounds)
    return made


def topic_is_read(made: Beside, count: int = 3) -> None:
    request = made.ask()
    assert isinstance(request, ReadTopic)
    made.engine.take([TopicRead(request.nonce, count)], made.now)


def compared(
    made: Beside,
    request: Request | TopicRequest,
    at: TransactionSnapshot,
    *differing: int,
    of: int,
    last: int = 9,
    is_end: bool = True,
) -> str:
    """The chunk had `of` rows, of which these differ. Returns its nonce."""
    assert isinstance(request, Chunk)
    lines = tuple(b"%d\tx" % number for number in differing)
    read = ChunkRead(request.nonce, at, lines, (str(last),), is_end, 0.01, Compared(of, 10 * of))
    made.engine.take([read], made.now)
    return request.nonce


def test_the_topic_is_read_before_any_row_and_named_in_each_chunk() -> None:
    made = comparing()
    request = made.ask()
    assert isinstance(request, ReadTopic)
    assert (request.schema, request.floor) == (SCHEMA, 0)
    assert made.asks() == [], "its answer is waited for"
    made.engine.take([TopicRead(request.nonce, 3)], made.now)
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert chunk.compared_with == request.scan


def test_rows_below_the_floor_of_the_last_sweep_do_not_count_as_there() -> None:
    made = comparing()
    made.sweeps.record(SCHEMA.table, 77, 1_000)
    request = made.ask()
    assert isinstance(request, ReadTopic)
    assert request.floor == 77


def test_what_differs_is_published_and_what_no_chunk_had_is_looked_up_and_deleted() -> None:
    made = comparing()
    topic_is_read(made)
    records = made.transaction(901, watermarks=[compared(made, made.ask(), snapshot(70), 2, 5, of=1_000)])
    assert rows(records) == [2, 5]
    (state,) = states(records)
    assert (state.status, state.rows, state.compared, state.owes) == ("running", 2, 1_000, "the heal")
    page = made.ask()
    assert isinstance(page, KeyPage)
    made.pages(page, 7, 8)
    lookup = made.ask()
    assert isinstance(lookup, Lookup)
    assert (lookup.keys, lookup.after, lookup.up_to) == ((key(7), key(8)), None, None)
    records = made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 8)])
    assert deletes(records) == [8]
    (state,) = states(records)
    assert (state.status, state.rows, state.compared, state.deleted, state.owes) == ("done", 2, 1_000, 1, "")
    assert sweeps(records) == []
    assert not made.engine.owed()


def test_it_owes_rows_until_the_last_lookup() -> None:
    made = comparing()
    assert made.engine.owed() == {SCHEMA.table: "the heal is running"}
    topic_is_read(made)
    made.transaction(901, watermarks=[compared(made, made.ask(), snapshot(70), of=3)])
    assert SCHEMA.table in made.engine.owed()
    made.pages(made.ask())
    assert [state.status for state in states(made.engine.endings())] == ["done"]
    assert not made.engine.owed()


def test_a_row_that_an_event_brought_since_the_topic_was_read_is_not_published_again() -> None:
    """The chunk differs from what was read, but the topic has the event by now."""
    made = comparing()
    topic_is_read(made)
    chunk = made.ask()
    made.transaction(65, 4)
    assert rows(made.transaction(901, watermarks=[compared(made, chunk, snapshot(70), 4, 5, of=9)])) == [5]


def test_a_row_that_the_chunk_does_not_see_yet_is_dropped() -> None:
    made = comparing()
    topic_is_read(made)
    chunk = made.ask()
    made.transaction(71, 4)
    assert rows(made.transaction(901, watermarks=[compared(made, chunk, snapshot(71), 4, 5, of=9)])) == [5]


def test_the_next_chunk_is_as_large_as_what_was_read_allows_not_what_differed() -> None:
    made = comparing()
    topic_is_read(made)
    first = made.ask()
    assert isinstance(first, Chunk)
    made.transaction(901, watermarks=[compared(made, first, snapshot(70), of=first.rows_max, is_end=False)])
    second = made.ask()
    assert isinstance(second, Chunk)
    assert (second.after, second.rows_max) == (("9",), 2 * first.rows_max)


def test_after_a_restart_chunks_go_on_and_all_keys_that_they_had_before_are_looked_up() -> None:
    made = comparing()
    topic_is_read(made)
    compared_part = compared(made, made.ask(), snapshot(70), 2, of=4, last=4, is_end=False)
    (state,) = states(made.transaction(901, watermarks=[compared_part]))
    again = Beside(state, seq=7, workers=1)
    again.pass_barrier(snapshot(80))
    again.begin(snapshot(80))
    topic_is_read(again)
    chunk = again.ask()
    assert isinstance(chunk, Chunk)
    assert chunk.after == ("4",)
    records = again.transaction(902, watermarks=[compared(again, chunk, snapshot(81), of=3)])
    assert (states(records)[0].compared, states(records)[0].rows) == (7, 1)
    again.pages(again.ask(), 1, 2, 3, 4)
    records = again.transaction(903, watermarks=[again.look_up(again.ask(), snapshot(82), 3)])
    assert deletes(records) == [3]
    assert states(records)[0].status == "done"


def test_where_the_topic_could_not_be_read_it_is_read_again() -> None:
    made = comparing()
    request = made.ask()
    made.engine.take([ReadFailed(request.nonce, UnreachableError("away", ""), is_permanent=False)], made.now)
    made.now += 1.0
    made.begin(snapshot(61), xid=902)
    again = made.ask()
    assert isinstance(again, ReadTopic)
    assert isinstance(request, ReadTopic)
    assert again.scan != request.scan


def test_where_its_rows_were_lost_meanwhile_it_is_read_again_before_the_next_chunk() -> None:
    made = comparing()
    topic_is_read(made)
    made.engine.take([ReadFailed(made.ask().nonce, ScanLostError("gone", ""), is_permanent=False)], made.now)
    made.now += 1.0
    made.begin(snapshot(61), xid=902)
    assert isinstance(made.ask(), ReadTopic)


def test_one_topic_is_read_at_a_time_until_its_table_is_compared() -> None:
    records = [wanted(schema, sweeps=False, compares=True) for schema in (SCHEMA, OTHER)]
    made = Beside(*records, schemas=(SCHEMA, OTHER), workers=1)
    made.pass_barrier(snapshot(50))
    first, second = made.asks()
    assert isinstance(first, DescribeTable)
    assert isinstance(second, DescribeTable)
    for number, request in enumerate((first, second)):
        _describe(made, request, 900 + number)
    (topic,) = [request for request in made.asks() if isinstance(request, ReadTopic)]
    made.engine.take([TopicRead(topic.nonce, 0)], made.now)
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    made.transaction(910, watermarks=[compared(made, chunk, snapshot(70), of=0)])
    made.pages(made.ask())
    (other,) = [request for request in made.asks() if isinstance(request, ReadTopic)]
    assert {topic.schema.table, other.schema.table} == {SCHEMA.table, OTHER.table}


def _describe(made: Beside, request: DescribeTable, xid: int) -> list[TopicRecord]:
    made.engine.take([TableDescribed(request.nonce, snapshot(60), "shape", 10, 20, (), "order")], made.now)
    return made.transaction(xid, watermarks=[request.nonce])


def test_a_snapshot_of_all_rows_that_replaces_it_takes_over_what_it_owes() -> None:
    made = comparing()
    topic_is_read(made)
    (state,) = states(made.engine.add(wanted(request="s")))
    assert (state.compares, state.sweeps, state.owes) == (False, True, "the heal")


def test_where_the_table_was_altered_the_topic_is_read_again_with_the_new_schema() -> None:
    made = comparing()
    topic_is_read(made)
    altered = replace(SCHEMA, version=2)
    made.engine.alter(altered)
    made.now += 1.0
    made.begin(snapshot(61), xid=902)
    request = made.ask()
    assert isinstance(request, ReadTopic)
    assert request.schema == altered


def test_chunks_of_which_little_is_published_do_not_shrink_because_they_wait_for_their_watermarks() -> None:
    def next_rows(*differing: int) -> int:
        made = comparing()
        topic_is_read(made)
        nonce = compared(made, made.ask(), snapshot(70), *differing, of=1_000, is_end=False)
        made.now += 2.0
        made.engine.take([], made.now)
        made.transaction(901, watermarks=[nonce])
        chunk = made.ask()
        assert isinstance(chunk, Chunk)
        return chunk.rows_max

    assert next_rows(1, 2) == 2_000, "it grows as far as it may"
    assert next_rows(*range(1_000)) < 200, "what is published delays the stream"

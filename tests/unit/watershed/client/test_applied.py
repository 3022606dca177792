"""Whether a store shows everything up to an LSN; an answer never comes too early."""

from collections.abc import Sequence
from typing import Any

import pytest

from cdc.model.control import PositionRecord, ProgressRecord, TopicState
from cdc.model.errors import GapError
from cdc.model.sink_records import SinkRecord
from tests.support.pipeline_records import position, sink
from tests.support.status_facts import MIB, source_end
from watershed.client.applied import (
    PAGE_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Positions,
    WaitError,
    WaitTarget,
    is_reached,
    obstacle,
    tables_of,
    target_of,
)

SEGMENT = 16 * MIB


A_TO_F = [f"public.{letter}" for letter in "abcdef"]


def capturing(*tables: str) -> PositionRecord:
    topics = {f"shop.{table}": TopicState(topic_id=table) for table in tables}
    return position(1200).model_copy(update={"topics": topics})


def is_shown(target: WaitTarget, name: str, sinks: Sequence[SinkRecord], capture: PositionRecord) -> bool:
    return obstacle(target, name, Positions(tuple(sinks), capture)) is None


def progress(**fields: Any) -> ProgressRecord:
    known = {"epoch": 1, "seq": 9, "lsn": 1200, "commit_ts_us": 1, "published_ts_us": 1, "end_offsets": {}}
    return ProgressRecord(**(known | fields))


def why(record: SinkRecord, published: ProgressRecord | None = None, target: WaitTarget | None = None) -> str | None:
    """The sink shows all topics of a capture of A_TO_F."""
    capture = capturing(*A_TO_F)
    record = record.model_copy(update={"shown": {name: state.identity for name, state in capture.topics.items()}})
    return obstacle(target or WaitTarget(1000, 1), record.sink, Positions((record,), capture, published, "shop"))


def test_an_lsn_is_shown_when_the_newest_generation_has_applied_it() -> None:
    target = target_of(1000, source_end(5000), position(900))
    assert not is_shown(target, "search", [sink(1, 999)], position(900))
    assert is_shown(target, "search", [sink(1, 1000)], position(1200))
    assert not is_shown(target, "search", [sink(1, 1000), sink(2, 0)], position(1200)), "it is being filled again"


def test_only_the_serving_generation_counts_and_none_while_one_replaces_another() -> None:
    """Of two serving ones that of the newest job: after a rollback the smaller number."""
    target = target_of(1000, source_end(5000), position(900))
    former, built = sink(1, 1000), sink(2, 1000)
    kept, building = former.model_copy(update={"role": "kept"}), built.model_copy(update={"role": "building"})
    assert is_shown(target, "search", [former, building.model_copy(update={"applied_lsn": 0})], position(1200))
    assert not is_shown(target, "search", [kept, building], position(1200)), "readers may see either"
    assert is_shown(target, "search", [kept, built], position(1200))
    back = sink(1, 999).model_copy(update={"job": (7, "")})
    assert not is_shown(target, "search", [back, built.model_copy(update={"job": (6, "")})], position(1200))


def test_an_lsn_of_an_earlier_epoch_says_nothing() -> None:
    target = target_of(1000, source_end(5000), position(900, epoch=2))
    assert not is_shown(target, "search", [sink(1, 9000, epoch=1)], position(900, epoch=2))
    assert is_shown(target, "search", [sink(1, 1000, epoch=2)], position(900, epoch=2))


def test_a_gap_that_is_healed_meanwhile_ends_the_wait() -> None:
    target = target_of(1000, source_end(5000), position(900))
    with pytest.raises(GapError, match=r"epoch 1, .* has ended"):
        is_shown(target, "search", [sink(1, 9000, epoch=2)], position(9000, epoch=2))


def test_a_sink_that_never_published_a_position_is_named() -> None:
    with pytest.raises(WaitError, match="no sink 'cache' has published a position; there are: search, warehouse"):
        is_shown(WaitTarget(1, 1), "cache", [sink(1, 5), sink(1, 5, name="warehouse")], position(5))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (source_end(5000, timeline=2), "the source is on timeline 2, the published changes are of timeline 1"),
        (source_end(5000, system_identifier="2"), "a different database, or database server"),
        (source_end(5000, database="test"), "a different database, or database server"),
    ],
)
def test_a_source_of_another_history_is_a_gap(source: object, says: str) -> None:
    with pytest.raises(GapError, match=says):
        target_of(1000, source, position(900))  # type: ignore[arg-type]


def test_an_lsn_that_the_source_has_not_reached_is_refused() -> None:
    assert target_of(5000, source_end(5000), position(900)).lsn == 5000
    with pytest.raises(WaitError, match="is beyond the end of the source's WAL, 0/1388"):
        target_of(5001, source_end(5000), position(900))


def test_an_lsn_of_another_timeline_is_refused() -> None:
    assert target_of(1000, source_end(5000), position(900), timeline=1) == WaitTarget(1000, 1)
    with pytest.raises(WaitError, match="belongs to timeline 7, but the source is on timeline 1"):
        target_of(1, source_end(5000), position(900), timeline=7)


@pytest.mark.parametrize("phase", ["intent", "loading"])
def test_before_capture_streams_there_is_nothing_to_wait_for(phase: str) -> None:
    with pytest.raises(WaitError, match="has not started to stream"):
        target_of(1000, source_end(5000), position(900, phase=phase))
    with pytest.raises(WaitError, match="has not started to stream"):
        target_of(1000, source_end(5000), None)


@pytest.mark.parametrize(
    ("lsn", "expected"),
    [
        (SEGMENT + 8192 + PAGE_HEADER_BYTES, SEGMENT + 8192),
        (SEGMENT + 8192 + PAGE_HEADER_BYTES + 1, SEGMENT + 8192 + PAGE_HEADER_BYTES + 1),
        (SEGMENT + SEGMENT_HEADER_BYTES, SEGMENT),
        (SEGMENT + SEGMENT_HEADER_BYTES + 1, SEGMENT + SEGMENT_HEADER_BYTES + 1),
        (SEGMENT, SEGMENT),
    ],
)
def test_a_page_header_without_a_record_behind_it_is_not_waited_for(lsn: int, expected: int) -> None:
    """The stream never comes to that place while the source is idle."""
    assert target_of(lsn, source_end(2 * SEGMENT), position(900)).lsn == expected


def test_there_is_no_answer_while_rows_are_owed() -> None:
    """Seen: a wait that was answered while 0 of 20,000 rows of the first snapshot were in the store."""
    owing = sink(1, 1000).model_copy(update={"owed": {"public.a": "its initial snapshot is running"}})
    assert why(owing) == "rows of public.a are owed: its initial snapshot is running"
    assert why(owing, target=WaitTarget(1000, 1, frozenset({"public.b"}))) is None, "others can be waited for"
    assert why(owing, target=WaitTarget(1000, 1, frozenset({"public.a"}))) is not None


def test_what_capture_owes_counts_before_the_sink_knows_it() -> None:
    published = progress(owed={"public.a": "it is stopped: no key", "public.b": "it is stopped: no key"})
    record = sink(1, 1000)
    assert why(record, published) == "rows of public.a are owed: it is stopped: no key"
    excluding = record.model_copy(update={"excluded": ("public.a", "public.b")})
    assert why(excluding, published) is None


def test_a_named_table_that_is_not_captured_is_not_shown() -> None:
    """Seen: a wait for a mistyped table, a removed one, or one that a pattern was about to take was answered
    at once, and what was owed of others did not count."""
    owing = sink(1, 1000).model_copy(update={"owed": {"public.a": "its initial snapshot is running"}})
    assert why(owing, target=WaitTarget(1000, 1, frozenset({"public.new"}))) == "table public.new is not captured"
    assert why(owing, target=WaitTarget(1000, 1, frozenset({"public.b", "public.g"}))) == (
        "table public.g is not captured"
    )
    joining = progress(owed={"public.new": "it is being added"})
    assert why(owing, joining, WaitTarget(1000, 1, frozenset({"public.new"}))) == (
        "rows of public.new are owed: it is being added"
    )


def test_tables_are_named_as_records_name_them() -> None:
    """Seen: what was owed of "public".a did not count, because records call it public.a."""
    assert tables_of(['"public".a', "public.b", '"a.b".c']) == {"public.a", "public.b", '"a.b".c'}
    with pytest.raises(WaitError, match=r"'orders' is not schema\.table"):
        tables_of(["orders"])


def test_a_table_that_the_store_does_not_hold_is_named() -> None:
    record = sink(1, 1000).model_copy(update={"excluded": ("public.a",)})
    with pytest.raises(WaitError, match=r"sink search does not hold public\.a"):
        why(record, target=WaitTarget(1000, 1, frozenset({"public.a"})))


@pytest.mark.parametrize(
    ("history", "incarnation", "is_shown_"),
    [("h1", "id1", True), ("h2", "id1", False), ("h1", "id2", False), ("h1", "id1#3", False)],
)
def test_a_position_in_other_topics_than_those_that_exist_shows_nothing(
    history: str, incarnation: str, is_shown_: bool
) -> None:
    """Seen: a topic was deleted and created again, and a wait was answered at once by the offsets of the former one."""
    record = sink(1, 1000).model_copy(update={"history": "h1", "incarnations": {"t": "id1"}})
    reason = why(record, progress(history=history, incarnations={"t": incarnation, "u": "id7"}))
    assert (reason is None) == is_shown_


def test_rejected_rows_are_an_error_unless_they_are_accepted() -> None:
    record = sink(1, 1000).model_copy(update={"rejected": {"public.a": 2}})
    with pytest.raises(WaitError, match=r"search has rejected rows of public\.a: 2 dead letters are open"):
        why(record)
    assert why(record, target=WaitTarget(1000, 1, frozenset({"public.b"}))) is None
    assert why(record, target=WaitTarget(1000, 1, accepts_rejected=True)) is None
    with pytest.raises(WaitError, match=r"3 changes of public\.b were not published"):
        why(sink(1, 1000), progress(unpublished={"public.b": 3}))


def test_a_table_that_was_added_since_the_position_of_the_sink_is_not_shown() -> None:
    added = position(1200).model_copy(update={"topics": {"t": TopicState(topic_id="id1", incarnation="id1#4F")}})
    record = sink(1, 1000)
    target = WaitTarget(1000, 1)
    assert obstacle(target, "search", Positions((record,), added)) is not None
    before = record.model_copy(update={"shown": {"t": "id1"}})
    assert obstacle(target, "search", Positions((before,), added)) is not None, "it was added again"
    shown = record.model_copy(update={"shown": {"t": "id1#4F"}})
    assert obstacle(target, "search", Positions((shown,), added)) is None


def test_what_is_missing_is_named_in_order() -> None:
    names = A_TO_F
    record = sink(1, 1000).model_copy(update={"excluded": (*names, "public.x")})
    with pytest.raises(WaitError) as refused:
        why(record, target=WaitTarget(1000, 1, frozenset({"public.held", *names})))
    assert refused.value.message == f"sink search does not hold {', '.join(names)}"
    owing = sink(1, 1000).model_copy(update={"owed": {"public.b": "it is stopped", "public.a": "it is paused"}})
    assert why(owing) == "rows of public.a are owed: it is paused"
    rejecting = sink(1, 1000).model_copy(update={"rejected": {"public.b": 2, "public.a": 1}})
    with pytest.raises(WaitError, match=r"rejected rows of public\.a: 1 dead letters"):
        why(rejecting)
    with pytest.raises(WaitError, match=r"1 changes of public\.a were not published"):
        why(sink(1, 1000), progress(unpublished={"public.b": 2, "public.a": 1}))


def test_no_rows_are_missing_of_tables_that_count_none_or_are_not_waited_for() -> None:
    record = sink(1, 1000).model_copy(update={"rejected": {"public.a": 0}})
    assert why(record, progress(unpublished={"public.a": 0})) is None
    missing = progress(unpublished={"public.b": 3})
    assert why(record, missing, WaitTarget(1000, 1, frozenset({"public.a"}))) is None
    assert why(record.model_copy(update={"excluded": ("public.b",)}), missing) is None


def test_a_position_of_capture_that_is_gone_ends_the_wait() -> None:
    with pytest.raises(GapError, match="epoch 1"):
        obstacle(WaitTarget(1000, 1), "search", Positions((sink(1, 1000),), None))


def test_where_no_sink_has_published_none_is_named_and_one_that_is_swapped_is_known() -> None:
    with pytest.raises(WaitError, match="there are: none"):
        is_shown(WaitTarget(1, 1), "search", [], position(5))
    kept = sink(1, 1000).model_copy(update={"role": "kept"})
    others = [kept, sink(1, 1000, name="cache")]
    assert obstacle(WaitTarget(1000, 1), "search", Positions(tuple(others), position(1200))) == (
        "another generation is about to take over"
    )


@pytest.mark.parametrize(
    ("lsn", "epoch", "reached"), [(1000, 2, True), (1001, 2, True), (999, 2, False), (1000, 1, False)]
)
def test_a_target_is_reached_by_the_applied_position_whatever_is_owed(lsn: int, epoch: int, reached: bool) -> None:
    record = sink(1, lsn, epoch=epoch).model_copy(update={"owed": {"public.a": "it is stopped"}})
    assert is_reached(WaitTarget(1000, 2), "search", Positions((record,), position(1200, epoch=2))) == reached
    kept = record.model_copy(update={"role": "kept"})
    assert not is_reached(WaitTarget(1000, 2), "search", Positions((kept,), position(1200, epoch=2)))


def test_an_lsn_of_the_server_that_capture_left_is_not_taken_for_one_of_the_new_server() -> None:
    """A dump that was restored into a server with a longer log: the former LSN is far below the new ones."""
    now = position(900)
    moved = now.model_copy(update={"source": now.source.model_copy(update={"moved_at": 800})})
    with pytest.raises(WaitError, match=r"LSN 0/31F is before 0/320, .* of the former server"):
        target_of(799, source_end(5000), moved)
    assert target_of(800, source_end(5000), moved) == WaitTarget(800, 1)
    with pytest.raises(WaitError, match="beyond the end"):
        target_of(5001, source_end(5000), moved)


def test_an_lsn_of_another_server_is_refused_where_the_caller_says_whose_it_is() -> None:
    assert target_of(1000, source_end(5000), position(900), system_identifier="1") == WaitTarget(1000, 1)
    with pytest.raises(WaitError, match="belongs to the server with system identifier 7, but the source has 1"):
        target_of(1000, source_end(5000), position(900), system_identifier="7")

"""Each break in history is told in a sentence of its own, and stops publishing."""

from dataclasses import replace

import pytest

from cdc.model.control import PartialTransaction, PositionRecord, ProgressRecord, SourceIdentity, TopicState
from cdc.model.errors import GapError, OtherDatabaseError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.ports.source_now import SourceNow
from cdc.tables.continuity import (
    history_of,
    incarnation_of,
    intact_topics,
    published_states,
    require_same_database,
    require_same_source,
    topic_trouble,
)

POSITION = PositionRecord(
    phase="streaming",
    epoch=1,
    seq=5,
    resume_lsn=0x1000,
    source=SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed"),
    publication="watershed:7:abc",
    protocol="proto_version=1",
    topics={"shop.public.orders": TopicState(topic_id="id-1", end_offsets=(3, 4))},
)
PROGRESS = ProgressRecord(epoch=1, seq=5, lsn=0x1000, commit_ts_us=0, published_ts_us=0, end_offsets={})
NOW = SourceNow("7", 1, "shop", Lsn(0x2000), "reserved", Lsn(0x0F00), "watershed:7:abc")


def topic(topic_id: str, ends: tuple[int, ...]) -> TopicState:
    return TopicState(topic_id=topic_id, end_offsets=ends)


TOPIC = topic("id-1", (3, 9))
ORDERS = TableSchema(
    TableId("public", "orders"), 1, 16384, (Column("id", 20, -1, "bigint", False),), ("id",), "shop.public.orders"
)


@pytest.mark.parametrize(
    "now",
    [
        NOW,
        replace(NOW, slot_confirmed_lsn=Lsn(0x1000)),
        replace(NOW, flush_lsn=Lsn(0x1000)),
        replace(NOW, slot_confirmed_lsn=None),
        replace(NOW, slot_wal_status="extended"),
        replace(NOW, publication="watershed:7:def"),  # altered: tables are read again
        replace(NOW, slot_wal_status="unreserved"),  # about to be lost, and not lost
    ],
)
def test_what_goes_on_is_no_gap(now: SourceNow) -> None:
    require_same_source(POSITION, now)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (
            replace(NOW, system_identifier="8"),
            "the source is a different database (system identifier 8, shop) than the one",
        ),
        (
            replace(NOW, database="other"),
            "the source is a different database (system identifier 7, other) than the one",
        ),
        (replace(NOW, timeline=2, ended=((1, 0x0F00),)), "the server is on timeline 2, which parts from the published"),
        (replace(NOW, slot_wal_status=None), "slot watershed is gone"),
        (replace(NOW, slot_wal_status="lost"), "slot watershed lost its WAL"),
        (
            replace(NOW, slot_confirmed_lsn=Lsn(0x1001)),
            "slot watershed was moved to 0/1001, past the position of capture, 0/1000",
        ),
        (replace(NOW, flush_lsn=Lsn(0x0FFF)), "the source's log ends at 0/FFF, before the position of capture, 0/1000"),
        (replace(NOW, publication="watershed:8:abc"), "the publication was dropped or recreated"),
        (replace(NOW, publication=None), "the publication was dropped or recreated"),
    ],
)
@pytest.mark.invariant(10)
def test_a_source_that_is_not_what_it_was_is_a_gap(now: SourceNow, says: str) -> None:
    with pytest.raises(GapError) as gap:
        require_same_source(POSITION, now)
    assert gap.value.message.startswith(says)
    assert gap.value.hint


def test_a_half_published_transaction_must_be_read_as_it_was() -> None:
    partial = PartialTransaction(commit_lsn=0x1100, xid=7, next_index=2)
    halfway = POSITION.model_copy(update={"partial": partial, "protocol": "proto_version=2"})
    with pytest.raises(
        GapError, match="partly published with proto_version=2, this version reads with proto_version=1"
    ):
        require_same_source(halfway, NOW)
    require_same_source(halfway.model_copy(update={"partial": None}), NOW)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (None, "is gone"),
        (topic("id-2", (3, 9)), "was deleted and recreated"),
        (topic("id-1", (3, 9, 0)), "has 3 partitions, but had 2"),
        (topic("id-1", (3, 3)), "has lost records: partition 1 ends at 3, it had reached 4"),
        (
            TopicState(topic_id="id-1", end_offsets=(3, 4), start_offsets=(0, 2)),
            "has lost records: partition 1 begins at 2, before it began at 1",
        ),
    ],
)
@pytest.mark.invariant(10)
def test_a_topic_that_is_not_what_it_was_is_in_trouble(now: TopicState | None, says: str) -> None:
    then = TopicState(topic_id="id-1", end_offsets=(3, 4), start_offsets=(0, 1))
    assert topic_trouble(then, now).startswith(says)


def test_records_that_followed_the_known_ends_are_missed_too() -> None:
    then = TopicState(topic_id="id-1", end_offsets=(3, 4), appended=2)
    assert topic_trouble(then, topic("id-1", (5, 4))) == ""
    expected = "has lost records: its partitions end at 8 together, they had reached 9"
    assert topic_trouble(then, topic("id-1", (4, 4))) == expected


def test_a_topic_that_grew_or_whose_ends_are_not_known_is_in_no_trouble() -> None:
    assert topic_trouble(POSITION.topics["shop.public.orders"], TOPIC) == ""
    assert topic_trouble(topic("id-1", ()), topic("id-1", (0, 0))) == ""


NOW_THERE = TopicState(topic_id="id-1", end_offsets=(5, 9), start_offsets=(0, 2))


@pytest.mark.parametrize(
    ("known", "incarnation"),
    [
        ([], "id-1#7"),  # it does not begin at 0, and nobody knows why
        ([TopicState(topic_id="id-0", end_offsets=(9, 9))], "id-1#7"),
        ([TopicState(topic_id="id-1", end_offsets=(5, 9), start_offsets=(0, 2))], ""),
        ([TopicState(topic_id="id-1", incarnation="id-1#3", start_offsets=(0, 2))], "id-1#3"),
        ([TopicState(topic_id="id-1", end_offsets=(5, 10))], "id-1#7"),
        ([TopicState(topic_id="id-1", end_offsets=(5, 9), start_offsets=(0, 1))], "id-1#7"),
        ([TopicState(topic_id="id-1", end_offsets=(5, 9)), TopicState(topic_id="id-1", end_offsets=(6, 9))], "id-1#7"),
        ([TopicState(topic_id="id-1"), TopicState(topic_id="id-1", incarnation="id-1#3")], "id-1#7"),
        ([TopicState(topic_id="id-1", incarnation="id-1#3"), TopicState(topic_id="id-0")], "id-1#3"),
    ],
)
def test_a_topic_that_may_have_lost_records_has_another_incarnation(known: list[TopicState], incarnation: str) -> None:
    assert incarnation_of(NOW_THERE, known, "7") == incarnation
    assert incarnation_of(NOW_THERE, known, "7", is_unsure=True) == "id-1#7"


def test_a_topic_that_was_created_is_called_by_its_id() -> None:
    created = TopicState(topic_id="id-2", end_offsets=(0,), start_offsets=(0,))
    assert incarnation_of(created, [], "7") == incarnation_of(created, [NOW_THERE], "7") == ""


def test_published_states_are_those_of_the_progress_record() -> None:
    progress = PROGRESS.model_copy(update={"end_offsets": {"a": (3,)}, "incarnations": {"a": "id-1#2", "b": "id-2"}})
    assert published_states(progress) == {
        "a": TopicState(topic_id="id-1", incarnation="id-1#2", end_offsets=(3,)),
        "b": TopicState(topic_id="id-2"),
    }
    assert published_states(None) == {}


def test_intact_is_a_topic_that_readers_know_as_it_is_now() -> None:
    known = {"a": "id-1#2", "b": "id-2", "c": "id-3", "d": "id-4"}
    progress = PROGRESS.model_copy(update={"history": "h", "incarnations": known})
    now = {
        "a": TopicState(topic_id="id-1", incarnation="id-1#2"),
        "b": TopicState(topic_id="id-2"),
        "c": TopicState(topic_id="id-3", incarnation="id-3#9"),  # it may have lost records
        "d": TopicState(topic_id="id-5"),  # it was created again
        "e": TopicState(topic_id="id-6"),  # nobody has read it yet
    }
    assert intact_topics(now, "h", progress) == {"a", "b"}
    assert intact_topics(now, "another", progress) == intact_topics(now, "h", None) == set()


def test_a_history_continues_unless_the_records_contradict_each_other() -> None:
    position, progress = POSITION.model_copy(update={"history": "h"}), PROGRESS.model_copy(update={"history": "h"})
    assert history_of(position, progress) == history_of(position, None) == history_of(None, progress) == "h"
    assert history_of(None, None) == history_of(position, PROGRESS) == ""


def test_another_database_is_named_for_a_move() -> None:
    with pytest.raises(OtherDatabaseError, match="system identifier 8, shop") as raised:
        require_same_database(POSITION, "8", "shop")
    assert raised.value.server == ("8", "shop")
    assert "cdc source move" in raised.value.hint
    require_same_database(POSITION, "7", "shop")


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    ("now", "says"),
    [
        (replace(NOW, slot_wal_status=None), "slot watershed is gone: changes that committed from 0/1000 on"),
        (
            replace(NOW, slot_wal_status="lost", slot_invalidation="rows_removed"),
            "slot watershed was invalidated (rows_removed): changes that committed from 0/1000 on",
        ),
    ],
)
def test_a_slot_that_a_standby_lost_is_a_gap_with_the_reason_why_standbys_lose_slots(now: SourceNow, says: str) -> None:
    with pytest.raises(GapError) as gap:
        require_same_source(POSITION, replace(now, is_standby=True))
    assert gap.value.message.startswith(says)
    assert "cdc snapshot heal" in gap.value.hint
    assert "a standby that is made again has no slots" in gap.value.hint

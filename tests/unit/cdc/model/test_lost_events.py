"""Which events a new beginning leaves behind."""

import pytest

from cdc.model.control import PositionRecord, SourceIdentity
from cdc.model.errors import GapError
from cdc.model.events import TableId
from cdc.model.lost_events import LostEventsRecord, lost_before, lost_from, lost_records, require_settled
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics

TOPICS = Topics("shop")
SOURCE = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
STREAMING = PositionRecord(
    phase="streaming", epoch=3, seq=9, resume_lsn=0x1000, source=SOURCE, publication="p", protocol="proto_version=1"
)
INTENT = STREAMING.model_copy(update={"phase": "intent", "epoch": 4, "resume_lsn": 0})
SINCE_US = 1_767_323_080_000_123
NOW_US = SINCE_US + 1
LOST = LostEventsRecord(epoch=4, from_lsn=0x1000, since_us=SINCE_US)


def test_the_key_has_the_epoch_and_the_table() -> None:
    assert LOST.record_key == "lost-events/4"
    assert LOST.model_copy(update={"table": "public.outbox"}).record_key == "lost-events/4/public.outbox"


def test_the_record_survives_its_encoding() -> None:
    assert LostEventsRecord.model_validate_json(LOST.encode()) == LOST


@pytest.mark.parametrize(("consistent_point", "from_lsn"), [(0x2000, 0x1000), (0x1000, 0x1000), (0x500, 0)])
def test_a_source_that_was_restored_has_no_beginning(consistent_point: int, from_lsn: int) -> None:
    ended = LOST.ended(Lsn(consistent_point))
    assert (ended.from_lsn, ended.to_lsn) == (from_lsn, consistent_point)


def test_the_sentence_names_the_part_of_the_log_and_the_time() -> None:
    assert str(LOST) == ("events that committed from 0/1000 on, from 2026-01-02T03:04:40+00:00 on may not be published")
    assert str(LostEventsRecord(epoch=4, from_lsn=0, to_lsn=0x2000, table="public.outbox")) == (
        "events of public.outbox that committed before 0/2000 may not be published"
    )
    assert LOST.since == "2026-01-02T03:04:40+00:00"
    assert LOST.settled(SINCE_US + 1).settled_us == SINCE_US + 1


def test_what_is_lost_begins_at_the_position_and_ends_where_the_new_stream_begins() -> None:
    begun = lost_from(STREAMING, (), 4, SINCE_US)
    assert begun == LostEventsRecord(epoch=4, from_lsn=0x1000, since_us=SINCE_US)
    assert str(begun).startswith("events that committed from 0/1000 on")
    ended = begun.ended(Lsn(0x2000))
    assert (ended.from_lsn, ended.to_lsn) == (0x1000, 0x2000)
    assert str(ended) == (
        "events that committed between 0/1000 and 0/2000, from 2026-01-02T03:04:40+00:00 on may not be published"
    )


def test_a_beginning_that_did_not_come_to_its_end_hands_on_where_it_began() -> None:
    vain = LostEventsRecord(epoch=4, from_lsn=0x1000, since_us=SINCE_US)
    older = LostEventsRecord(epoch=2, from_lsn=1, to_lsn=2)
    begun = lost_from(INTENT, (older, vain), 5, 0)
    assert begun == vain.model_copy(update={"epoch": 5})
    reported = lost_records(TOPICS, begun, (older, vain))
    assert [(record.topic, record.key, record.value is None) for record in reported] == [
        ("shop.state", b"lost-events/5", False),
        ("shop.state", b"lost-events/4", True),
    ]
    # A load ends after the slot was made; the next try makes another one.
    loaded = vain.ended(Lsn(0x2000))
    assert lost_from(INTENT, (loaded,), 5, 0) == vain.model_copy(update={"epoch": 5})


def test_the_first_start_loses_nothing() -> None:
    assert lost_from(INTENT, (), 5, 0) is None


def test_where_it_begins_may_not_be_known() -> None:
    begun = lost_from(None, (), 4, 0)
    assert begun is not None
    assert str(begun.ended(Lsn(0x2000))) == "events that committed before 0/2000 may not be published"
    behind = lost_from(STREAMING, (), 4, 0)
    assert behind is not None
    assert behind.ended(Lsn(0x500)).from_lsn == 0, "the source was restored"
    assert lost_records(TOPICS, behind)[0].value == behind.encode()


def test_rows_that_may_not_be_published_are_kept_until_that_is_settled() -> None:
    outbox, other = TableId("public", "outbox"), TableId("public", "other")
    gap = LostEventsRecord(epoch=4, from_lsn=0x1000, to_lsn=0x2000)
    joined = LostEventsRecord(epoch=4, table="public.outbox", from_lsn=0, to_lsn=0x3000)
    with pytest.raises(GapError, match=r"between 0/1000 and 0/2000 may .*; rows of public\.other may be among them"):
        require_settled(other, [gap, joined])
    gap = gap.settled(NOW_US)
    require_settled(other, [gap, joined])
    with pytest.raises(GapError, match=r"events of public\.outbox that committed before 0/3000"):
        require_settled(outbox, [gap, joined])
    require_settled(outbox, [gap, joined.settled(NOW_US)])
    assert (gap.record_key, joined.record_key) == ("lost-events/4", "lost-events/4/public.outbox")


def test_rows_from_before_an_outbox_is_captured_are_not_pruned() -> None:
    """Seen: no snapshot publishes them, the slot is past them, and `cdc outbox prune` deleted them."""
    existing = lost_before(TableId("public", "outbox"), 1, Lsn(0x3000))
    assert str(existing) == "events of public.outbox that committed before 0/3000 may not be published"
    with pytest.raises(GapError, match=r"rows of public\.outbox may be among them"):
        require_settled(TableId("public", "outbox"), [existing])
    require_settled(TableId("public", "other"), [existing])
    require_settled(TableId("public", "outbox"), [existing.settled(1)])

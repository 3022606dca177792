"""The record of lost events: its key, its end, and its sentence."""

import pytest

from cdc.model.lost_events import LostEventsRecord
from cdc.model.lsn import Lsn

SINCE_US = 1_767_323_080_000_123
LOST = LostEventsRecord(epoch=4, from_lsn=0x1000, since_us=SINCE_US)


def test_the_key_has_the_epoch_and_the_table() -> None:
    assert LOST.key == "lost-events/4"
    assert LOST.model_copy(update={"table": "public.outbox"}).key == "lost-events/4/public.outbox"


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

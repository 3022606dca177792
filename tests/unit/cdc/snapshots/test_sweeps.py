"""Sweep records: the floor of a table never goes down."""

import pytest

from cdc.model.control import SweepRecord
from cdc.model.events import TableId, pack_version
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.snapshots.sweeps import Sweeps

T, OTHER = TableId("public", "t"), TableId("public", 'o.t"her')


def decoded(record: TopicRecord) -> SweepRecord:
    assert record.topic == "shop.control"
    return SweepRecord.decode(record.value or b"", "control")


def test_a_sweep_names_table_floor_and_the_commit_that_must_be_applied() -> None:
    record = Sweeps(Topics("shop"), 2, {}).record(OTHER, pack_version(2, 5), commit_lsn=700)
    assert record.key == b"sweep/public.o%2Et%22her"
    assert decoded(record) == SweepRecord(
        table_schema="public", table_name='o.t"her', floor=pack_version(2, 5), as_of_lsn=701, epoch=2
    )


@pytest.mark.invariant(14)
def test_a_lower_floor_repeats_the_higher_one_of_its_table() -> None:
    sweeps = Sweeps(Topics("shop"), 2, {OTHER: pack_version(1, 90)})
    floors = [decoded(sweeps.record(T, pack_version(2, seq), 700)).floor for seq in (5, 3, 8)]
    assert floors == [pack_version(2, 5), pack_version(2, 5), pack_version(2, 8)]
    assert decoded(sweeps.record(OTHER, pack_version(1, 4), 800)).floor == pack_version(1, 90)


def test_a_sweep_names_the_floor_of_the_one_that_it_replaces() -> None:
    """A reader that has not done that one can't know from the topic when it was due."""
    sweeps = Sweeps(Topics("shop"), 2, {OTHER: pack_version(1, 90)})
    seen = [decoded(sweeps.record(t, pack_version(2, seq), 700)) for t, seq in ((T, 5), (T, 3), (T, 8), (OTHER, 9))]
    fives, nineties = pack_version(2, 5), pack_version(1, 90)
    assert [sweep.previous_floor for sweep in seen] == [0, fives, fives, nineties]


def test_the_last_floor_of_a_table_is_known() -> None:
    sweeps = Sweeps(Topics("shop"), 2, {OTHER: pack_version(1, 90)})
    assert (sweeps.floor(OTHER), sweeps.floor(T)) == (pack_version(1, 90), 0)
    sweeps.record(T, pack_version(2, 5), 700)
    assert sweeps.floor(T) == pack_version(2, 5)

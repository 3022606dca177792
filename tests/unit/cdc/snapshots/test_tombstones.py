"""Which sweeps are still to be followed by tombstones."""

from cdc.model.topics import Topics
from cdc.snapshots.sweeps import Sweeps
from cdc.snapshots.tombstones import TombstoneJobs
from tests.unit.cdc.capture.loops import SCHEMA

TABLE = SCHEMA.table
SCHEMAS = {TABLE: SCHEMA}


def test_a_sweep_of_an_earlier_session_is_followed_too() -> None:
    tombstones = TombstoneJobs(SCHEMAS, Sweeps(Topics("shop"), 1, {TABLE: 70}), {})
    assert tombstones.begin() == []
    assert tombstones.jobs[TABLE].below == 70
    tombstones.on_committed()
    assert tombstones.due == {}


def test_what_is_written_is_not_written_again() -> None:
    assert TombstoneJobs(SCHEMAS, Sweeps(Topics("shop"), 1, {TABLE: 70}), {TABLE: 70}).due == {}
    sweeps = Sweeps(Topics("shop"), 1, {TABLE: 70})
    tombstones = TombstoneJobs(SCHEMAS, sweeps, {})
    tombstones.begin()
    sweeps.record(TABLE, 60, 1_000)  # repeats the higher floor
    tombstones.on_committed()
    assert tombstones.due == {}
    assert tombstones.jobs[TABLE].below == 70


def test_a_later_sweep_replaces_what_is_under_way() -> None:
    sweeps = Sweeps(Topics("shop"), 1, {TABLE: 70})
    tombstones = TombstoneJobs(SCHEMAS, sweeps, {})
    tombstones.begin()
    first = tombstones.jobs[TABLE]
    sweeps.record(TABLE, 80, 1_000)
    assert tombstones.due == {}, "rows below its floor may be in the open Kafka transaction, where no scan sees them"
    tombstones.on_committed()
    sweeps.record(TABLE, 90, 1_100)
    assert tombstones.begin() == [first]
    assert tombstones.jobs[TABLE].below == 80


def test_where_none_are_wanted_there_are_none() -> None:
    tombstones = TombstoneJobs(SCHEMAS, Sweeps(Topics("shop"), 1, {TABLE: 70}), None)
    assert tombstones.due == {}
    assert tombstones.jobs == {}

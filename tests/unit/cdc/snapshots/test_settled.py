"""Changes that could not be published: when a snapshot of all rows has settled them, and when not."""

from typing import Any

import pytest

from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import SnapshotRecord, UnpublishedRecord
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Position
from cdc.model.lsn import Lsn
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import NOW_US, TOPICS, Beside, snapshot, wanted

BEFORE = UnpublishedRecord(table_schema=SCHEMA.table.schema, table_name=SCHEMA.table.name, dead_letters=2, skipped=1)
NAME = str(SCHEMA.table)


def made(unpublishable: Unpublishable, **fields: Any) -> Beside:
    beside = Beside(wanted(**fields), unpublishable=unpublishable)
    beside.pass_barrier(snapshot(50))
    return beside


def finish(beside: Beside) -> None:
    nonce = beside.read(beside.ask(), snapshot(100), 1, 2, is_end=True)
    beside.transaction(90, watermarks=[nonce])


def leave_one_out(unpublishable: Unpublishable) -> None:
    error = UnsupportedChangeError("it has no form", table=SCHEMA.table)
    unpublishable.replacements(SCHEMA, Position(Lsn(1), 1), error, NOW_US)


@pytest.mark.parametrize("sweeps", [True, False], ids=["again", "initial"])
def test_a_snapshot_of_all_rows_settles_those_from_before_it(sweeps: bool) -> None:
    """Seen: the next step was such a snapshot, and after it the problem stayed, and each wait for the table failed."""
    unpublishable = Unpublishable(TOPICS, "skip", {}, [BEFORE])
    beside = made(unpublishable, sweeps=sweeps)
    beside.begin(snapshot(60))
    leave_one_out(unpublishable)
    assert unpublishable.counts == {NAME: 4}
    finish(beside)
    assert unpublishable.counts == {NAME: 1}, "the one that was left out meanwhile"


def test_it_is_recorded_once_and_survives_a_restart_within_the_snapshot() -> None:
    first = made(Unpublishable(TOPICS, "skip", {}, [BEFORE]))
    first.begin(snapshot(60))
    (record, *_) = first.engine.jobs[SCHEMA.table].state(TOPICS)
    begun = SnapshotRecord.decode(record.value or b"", "state")
    assert begun.unpublished == 3
    unpublishable = Unpublishable(TOPICS, "skip", {}, [BEFORE])
    leave_one_out(unpublishable)
    second = Beside(begun, unpublishable=unpublishable)
    second.pass_barrier(snapshot(70))
    second.begin(snapshot(80))
    nonce = second.read(second.ask(), snapshot(100), 1, is_end=True)
    records = second.transaction(90, watermarks=[nonce])
    (settled,) = [record for record in records if record.key.startswith(b"unpublished/")]
    assert UnpublishedRecord.decode(settled.value or b"", "state").settled == 3
    assert unpublishable.counts == {NAME: 1}


@pytest.mark.parametrize("part", [{"where": "true"}, {"keys": ['{"id":1}']}], ids=["condition", "keys"])
def test_a_part_of_the_rows_settles_nothing(part: dict[str, Any]) -> None:
    unpublishable = Unpublishable(TOPICS, "skip", {}, [BEFORE])
    if "where" in part:
        part = part | {"sweeps": False, "deletes_in": {"after": None, "up_to": None}}
    beside = made(unpublishable, **({"sweeps": False} | part))
    beside.begin(snapshot(60))
    for request in beside.asks():
        if hasattr(request, "rows_max"):
            beside.transaction(90, watermarks=[beside.read(request, snapshot(100), 1, is_end=True)])
    assert unpublishable.counts == {NAME: 3}


def test_nothing_is_settled_where_a_chunk_may_not_see_what_was_left_out() -> None:
    """Its row is dropped in favour of that change, which is in no topic."""
    unpublishable = Unpublishable(TOPICS, "skip", {}, [BEFORE])
    beside = made(unpublishable)
    beside.transaction(75, 2)  # not visible yet for the snapshot that describes the table
    beside.begin(snapshot(60))
    finish(beside)
    assert unpublishable.counts == {NAME: 3}

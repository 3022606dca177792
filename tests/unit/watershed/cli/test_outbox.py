"""When rows of an outbox table may be deleted."""

from typing import Any

import pytest

from cdc.kafka.state_reader import StoredState
from cdc.model.errors import GapError, WatershedError
from cdc.model.events import TableId
from cdc.model.lost_events import LostEventsRecord
from cdc.model.table_state import TableRecord
from watershed.cli import outbox
from watershed.cli.outbox import _require_published

OUTBOX = TableId("cdc", "outbox")
CAPTURED = TableRecord.captured(OUTBOX, None, 1)
STOPPED = TableRecord.stopped(OUTBOX, WatershedError("it has no key", "add one"), 1, is_held=False)


@pytest.mark.parametrize(
    ("record", "lost", "why"),
    [
        (CAPTURED, (), None),
        (STOPPED, (), "is stopped, so its rows are not published: it has no key"),
        (None, (), "cdc.outbox is not captured, so its rows are not published"),
        (CAPTURED, (LostEventsRecord(epoch=2, from_lsn=1, to_lsn=9),), "rows of cdc.outbox may be among them"),
    ],
)
def test_only_rows_that_capture_publishes_are_deleted(
    record: TableRecord | None, lost: Any, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: an outbox table that was new in the configuration, before capture was started again. The slot confirms the
    log without it, and its rows counted as published."""
    state = StoredState(None, (), (), 0, {}, {} if record is None else {OUTBOX: record}, lost=lost)
    monkeypatch.setattr(outbox, "read_state", lambda _: state)
    if why is None:
        _require_published(None, OUTBOX)  # type: ignore[arg-type]
        return
    with pytest.raises(GapError, match=why):
        _require_published(None, OUTBOX)  # type: ignore[arg-type]

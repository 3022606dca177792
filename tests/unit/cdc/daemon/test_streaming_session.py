"""What a session records before it streams."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.config.settings import PipelineConfig
from cdc.daemon import streaming_session
from cdc.daemon.streaming_session import Session
from cdc.model.control import ProgressRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.tables.selection import Stop, TableSelection

STOPPED, WAITING, CAPTURED = (TableId("public", name) for name in ("stopped", "waiting", "captured"))
OWED = {"public.stopped": "it is stopped: gone", "public.waiting": "it is being added"}
SELECTION = TableSelection((), (WAITING, CAPTURED), {STOPPED: Stop(WatershedError("gone", "start it"), is_held=True)})


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("known", "epoch", "owed"),
    [
        ({"public.other": "it is read"}, 1, OWED | {"public.other": "it is read"}),
        (OWED, 1, None),
        ({}, 2, None),
        (None, 1, None),
    ],
    ids=["new", "known", "healed", "no-progress"],
)
def test_tables_that_the_position_does_not_name_are_owed_at_once(
    known: dict[str, str] | None, epoch: int, owed: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the session has published anything: it may die, or take its time."""
    last = None
    if known is not None:
        last = ProgressRecord(
            epoch=1, seq=2, lsn=3, commit_ts_us=4, published_ts_us=5, end_offsets={"shop.public.a": (6,)}, owed=known
        )
    monkeypatch.setattr(streaming_session, "read_progress", lambda _: last)
    tables = list(map(str, (STOPPED, WAITING, CAPTURED)))
    config = PipelineConfig.model_validate(
        {
            "source": {"dsn": "", "tables": tables},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
        }
    )
    nothing = cast("Any", None)
    session = Session(config, nothing, nothing, nothing, {}, nothing, nothing)
    these = SimpleNamespace(schemas=[SimpleNamespace(table=CAPTURED)], constants=SimpleNamespace(epoch=epoch))
    records = session._newly_owed(cast("Any", these), SELECTION)
    if owed is None:
        assert records == []
    else:
        (record,) = records
        reported = ProgressRecord.decode(record.value or b"", record.topic)
        assert (record.topic, last and last.model_copy(update={"owed": owed})) == ("shop.progress", reported)

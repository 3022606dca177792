"""What a session records before it streams."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.config.settings import PipelineConfig
from cdc.daemon import streaming_session
from cdc.daemon.streaming_session import Session
from cdc.model.control import ProgressRecord, TopicState
from cdc.model.errors import SourceError, WatershedError
from cdc.model.events import Column, TableId
from cdc.model.table_state import SelectionRecord, TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.ports.source_table import SourceTable, TableDescription
from cdc.tables.matching import Matches
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


def test_the_tables_in_force_are_recorded_and_records_of_others_deleted() -> None:
    config = PipelineConfig.model_validate(
        {
            "source": {"dsn": "", "tables": ["public.*"], "exclude_tables": ["public.x"]},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
        }
    )
    config = config.model_copy(update={"source": config.source.with_matched([CAPTURED])})
    nothing = cast("Any", None)
    session = Session(config, nothing, nothing, nothing, {}, nothing, nothing)
    why = WatershedError("an operator stopped it", "cdc table start")
    gone, held = TableId("public", "gone"), TableId("public", "held")
    tables = {
        CAPTURED: TableRecord.captured(CAPTURED, None, 1),
        gone: TableRecord.stopped(gone, why, 1, is_held=False),
        held: TableRecord.stopped(held, why, 1, is_held=True),
    }

    def records(selection: SelectionRecord | None) -> list[TopicRecord]:
        return session._newly_selected(cast("Any", SimpleNamespace(tables=tables, selection=selection)))

    now = SelectionRecord(include=("public.*",), exclude=("public.x",), tables=(str(CAPTURED),))
    deleted = TopicRecord("shop.state", b"table/public.gone", None)
    assert records(None) == [deleted, now.to("shop.state")]
    assert records(now) == [deleted], "it says so already"
    assert SelectionRecord.decode(records(None)[1].value or b"", "state") == now


def test_a_table_that_masks_do_not_fit_any_more_is_stopped_alone() -> None:
    """Seen: a masked column was renamed, and capture ended, for all tables, and could not be started again."""
    tables = [TableId("public", name) for name in ("renamed", "fits", "missing", "events")]
    config = PipelineConfig.model_validate(
        {
            "source": {"dsn": "", "tables": list(map(str, tables[:3]))},
            "outbox": {"tables": [{"table": "public.events"}]},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
            "masking": {"asterisks": {f"{table}.phone": 3 for table in tables[:3]}},
        }
    )
    nothing = cast("Any", None)
    session = Session(config, nothing, nothing, nothing, {}, nothing, nothing)

    def described(table: TableId, *names: str) -> TableDescription:
        columns = (Column("id", 23, -1, "integer", False), *(Column(name, 25, -1, "text", True) for name in names))
        found = SourceTable(table, 1, False, True, False, True, columns, ("id",))
        return TableDescription(found, None, "", "", None)

    renamed, fits, missing, events = tables
    gone = TableDescription(None, None, "", "", SourceError("it was dropped", "create it"))
    tables_now = {
        renamed: described(renamed, "mobile"),
        fits: described(fits, "phone"),
        missing: gone,
        events: described(events),
    }
    for joining in ([], [renamed, fits]):
        found = session._without_format(tables_now, joining)
        assert found.keys() == {renamed}
    why = found[renamed].error
    assert why is not None and why is found[renamed].barrier, "neither kept nor added"
    assert "masking names column phone, which table public.renamed does not have" in why.message


def test_a_new_table_whose_topic_another_program_writes_to_is_stopped_alone() -> None:
    """Seen: a first start refuses such a topic, but a table that was added later took it, and the sinks stopped at the
    first foreign record, with all their tables. Topics of Debezium have the names of ours."""
    tables = [TableId("public", name) for name in ("known", "foreign", "empty", "events")]
    known, foreign, _, events = tables
    config = PipelineConfig.model_validate(
        {
            "source": {"dsn": "", "tables": list(map(str, tables[:3]))},
            "outbox": {"tables": [{"table": str(events)}]},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
        }
    )
    ends = {"known": (5, 0), "foreign": (0, 3), "empty": (0, 0), "events": (9,)}
    states = {f"shop.public.{name}": TopicState(topic_id=name, end_offsets=some) for name, some in ends.items()}
    topics = {name: SimpleNamespace(name=name) for name in states}
    admin = SimpleNamespace(states=lambda _: states, unusable=lambda _: None)
    nothing = cast("Any", None)
    session = Session(config, cast("Any", admin), nothing, nothing, {}, nothing, nothing)
    position = SimpleNamespace(publication="p:1:x", topics={}, partial=None)
    publication = SimpleNamespace(fingerprint="p:1:x", publishes_all=True)
    doubts = session._doubts(
        cast("Any", position), cast("Any", publication), [], cast("Any", topics), Matches(()), {known}
    )
    assert doubts.unusable.keys() == {foreign}
    assert "topic shop.public.foreign has records, but table public.foreign was never captured" in (
        doubts.unusable[foreign].message
    )

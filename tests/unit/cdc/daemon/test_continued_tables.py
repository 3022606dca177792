"""The tables of a new epoch: which are captured, which are stopped, and when none can be."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.settings import PipelineConfig
from cdc.daemon import continued_tables
from cdc.kafka.state_reader import Captured
from cdc.model.control import TopicState
from cdc.model.errors import SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import TableRecord
from cdc.ports.source_table import SourceTable
from tests.unit.cdc.capture.loops import COLUMNS, SCHEMA

A, B, GONE = (TableId("public", name) for name in ("a", "b", "gone"))
OTHER_KEY = "its key is (name), but its records have (id)"
Continued = Callable[..., tuple[list[str], dict[str, str]]]


@pytest.fixture
def continued(monkeypatch: pytest.MonkeyPatch) -> Continued:
    """Returns the tables that are captured, and why others are stopped. Tables with `other_key` had key id; GONE does
    not exist."""

    def run(
        *tables: TableId,
        other_key: Collection[TableId] = (),
        held: Collection[TableId] = (),
        pattern: str | None = None,
        is_continued: bool = True,
        never_captured: Collection[TableId] = (),
        with_records: Collection[TableId] = (),
    ) -> Any:
        def checked(_: Any, table: TableId, *__: Any) -> SourceTable:
            if table == GONE:
                raise SourceError(f"table {table} does not exist", "create it")
            key = ("name",) if table in other_key else ("id",)
            return SourceTable(table, 1, False, True, False, True, COLUMNS, key)

        why = WatershedError("an operator stopped it", "cdc table start")
        records = {table: TableRecord.stopped(table, why, 0, is_held=True) for table in held}
        known = {table: replace(SCHEMA, table=table) for table in tables if table not in never_captured}
        topics = {
            f"shop.{table}": TopicState(topic_id="i", end_offsets=(0, int(table in with_records))) for table in tables
        }
        monkeypatch.setattr(continued_tables, "checked_table", checked)
        monkeypatch.setattr(continued_tables, "read_publication", lambda *_: None)
        monkeypatch.setattr(continued_tables, "read_captured", lambda _: Captured(known, {}, {}))
        monkeypatch.setattr(continued_tables, "read_tables", lambda _: records)
        source = {"dsn": "", "tables": [pattern] if pattern else [str(table) for table in tables]}
        config = PipelineConfig.model_validate(
            {"source": source, "kafka": {"bootstrap_servers": "k:9092"}, "topics": {"prefix": "shop"}}
        )
        if pattern:
            config = config.model_copy(update={"source": config.source.with_matched(tables)})
        connection: Any = None
        chosen, made = continued_tables.continued(config, connection, 5, is_continued=is_continued, topics=topics)
        stopped = [TableRecord.decode(record.value or b"", record.topic) for record in made]
        assert not any(record.is_held for record in stopped)
        return list(map(str, chosen.table_ids)), {str(record.table): record.message for record in stopped}

    return run


def test_tables_that_are_as_they_were_are_captured(continued: Continued) -> None:
    assert continued(A, B) == (["public.a", "public.b"], {})


def test_a_table_whose_key_changed_or_that_is_gone_is_stopped_alone(continued: Continued) -> None:
    assert continued(A, B, GONE, other_key=[A]) == (
        ["public.b"],
        {
            "public.a": f"table public.a can't be captured again: {OTHER_KEY}",
            "public.gone": "table public.gone does not exist",
        },
    )


def test_at_a_first_start_only_a_table_that_a_pattern_takes_may_be_in_trouble(continued: Continued) -> None:
    gone = {"public.gone": "table public.gone does not exist"}
    assert continued(A, B, GONE, pattern="public.*", other_key=[A], is_continued=False) == (
        ["public.a", "public.b"],
        gone,
    )
    with pytest.raises(SourceError, match=r"public.gone does not exist"):
        continued(A, GONE, is_continued=False)


def test_a_table_that_an_operator_stopped_stays_stopped(continued: Continued) -> None:
    assert continued(A, B, held=[A]) == (["public.b"], {})
    assert continued(A, GONE, held=[GONE]) == (["public.a"], {})


def test_where_an_operator_stopped_all_they_are_captured_again(continued: Continued) -> None:
    assert continued(A, B, held=[A, B]) == (["public.a", "public.b"], {})


def test_where_no_table_can_be_captured_the_reason_is_raised(continued: Continued) -> None:
    for held in ([], [A]):
        with pytest.raises(SourceError, match="can't be captured again"):
            continued(A, GONE, other_key=[A], held=held)


def test_a_table_that_a_heal_adds_does_not_take_a_topic_that_another_program_writes_to(continued: Continued) -> None:
    """Seen: a start and a reload look for that; a heal adopted the topic, and sinks met records of another program."""
    tables, stopped = continued(A, B, never_captured=[B], with_records=[A, B])
    assert tables == ["public.a"]
    assert stopped["public.b"].startswith("topic shop.public.b has records, but table public.b was never captured")
    assert continued(A, B, never_captured=[B], with_records=[A]) == (["public.a", "public.b"], {})


def test_where_no_table_is_known_the_state_is_lost_and_the_records_may_be_ours(continued: Continued) -> None:
    assert continued(A, B, never_captured=[A, B], with_records=[A, B]) == (["public.a", "public.b"], {})

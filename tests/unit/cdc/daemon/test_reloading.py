"""A configuration file that is read again: what it may change, and when it takes effect."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.config.settings import PipelineConfig
from cdc.daemon import reloading
from cdc.daemon.reloading import Reloading
from cdc.kafka.state_reader import Captured
from cdc.model.errors import ConfigError, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import SelectionRecord
from cdc.ports.source_table import SourceTable
from tests.unit.cdc.capture.loops import COLUMNS, SCHEMA

A, B, BAD = (TableId("public", name) for name in ("a", "b", "bad"))


def configured(*tables: str, sections: Any = None, **source: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "source": {"dsn": "host=db", "tables": tables, **source},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
            **(sections or {}),
        }
    )


class File:
    """The file, a source with the tables A, B and BAD, which has no key, and capture with A."""

    def __init__(self) -> None:
        self.then = configured("public.a")
        self.now: PipelineConfig | ConfigError = self.then
        self.looked_at: list[TableId] = []
        self.reloading = Reloading(self.then, self._read)

    def _read(self) -> PipelineConfig:
        if isinstance(self.now, ConfigError):
            raise self.now
        return self.now

    def checked(self, _: Any, table: TableId, *__: Any) -> SourceTable:
        self.looked_at.append(table)
        if table not in (A, B):
            raise SourceError(f"table {table} has no key", "add one")
        return SourceTable(table, 1, False, True, False, True, COLUMNS, ("id",))

    def reload(self, now: PipelineConfig | ConfigError) -> str:
        self.now = now
        return self.reloading.request(self.then.source)

    def refused(self, now: PipelineConfig | ConfigError) -> str:
        with pytest.raises(WatershedError) as error:
            self.reload(now)
        assert not self.reloading.is_due and self.reloading.in_force is self.then
        assert error.value.hint
        return error.value.message


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> File:
    made = File()
    record = SelectionRecord(include=("public.a",), exclude=(), tables=("public.a",))
    known = Captured({A: replace(SCHEMA, table=A)}, {}, {})
    for name, value in {
        "connect": lambda *_, **__: nullcontext(),
        "existing_tables": lambda _: [A, B, BAD],
        "read_publication": lambda *_: None,
        "read_selection": lambda _: record,
        "read_captured": lambda _: known,
        "checked_table": made.checked,
    }.items():
        monkeypatch.setattr(reloading, name, value)
    return made


def test_tables_that_join_and_leave_are_the_answer_and_the_next_session_has_them(file: File) -> None:
    now = configured("public.b")
    assert file.reload(now) == "public.b joins; public.a leaves"
    assert file.reloading.is_due and file.reloading.in_force is file.then
    assert file.reloading.take_up()
    assert file.reloading.in_force is now
    assert not file.reloading.is_due and not file.reloading.take_up()
    assert file.looked_at == [B]


def test_a_table_that_a_pattern_takes_is_no_mistake_if_it_can_not_be_captured(file: File) -> None:
    assert file.reload(configured("public.*")) == "public.b, public.bad join"


def test_the_last_of_two_files_counts(file: File) -> None:
    file.reload(configured("public.a", "public.b"))
    assert file.reload(file.then) == "nothing has changed for capture"
    assert not file.reloading.is_due


def test_sinks_are_known_as_they_were_read_last() -> None:
    """Capture needs them when a table is altered, and no session ends for them."""
    then, now = (
        Config.model_validate(configured("public.a").model_dump() | {"sinks": sinks})
        for sinks in ({}, {"b": {"type": "sql", "url": "sqlite:///store.db"}})
    )
    reloading = Reloading(then, lambda: now)
    assert reloading.request(then.source) == "nothing has changed for capture"
    assert not reloading.is_due and reloading.in_force is now


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (ConfigError("source.tables: missing", "correct it"), "source.tables: missing"),
        (configured("public.a", "public.bad"), "table public.bad has no key"),
        (configured("none.*"), "no table matches none.*"),
        (configured("*", tables_max=2), "match 3 tables, more than source.tables_max (2)"),
        (configured("public.a", slot="other"), "source.slot can't change while capture runs"),
        (configured("public.a", sections={"capture": {"idle_position_s": 7}}), "capture can't change"),
        (configured("public.a", exclude_columns=[r"public\.a\.nme"]), "matches no column"),
        (configured("public.a", exclude_columns=[r"public\.a\.name"]), "was published before"),
        (configured("public.a", sections={"masking": {"asterisks": {"public.a.id": 3}}}), "it can't be masked"),
        (configured("public.a", sections={"masking": {"asterisks": {"public.a.phone": 3}}}), "does not have"),
        (configured("public.a", key_columns={"public.a": ["id"]}), ""),
    ],
)
def test_with_a_mistake_the_configuration_in_force_stays(
    file: File, now: PipelineConfig | ConfigError, why: str
) -> None:
    if why:
        assert why in (message := file.refused(now))
        assert message.endswith(": the configuration in force stays")
    else:
        assert file.reload(now) == "options of tables have changed"


def test_masks_that_change_leave_published_rows_as_they_are_and_say_so(file: File) -> None:
    """Also masks that do not fit a table which only a pattern takes: it is stopped."""
    for column in ("name", "phone"):
        masking = {"masking": {"asterisks": {f"public.a.{column}": 3}}}
        said = file.reload(configured("^public[.]a$", sections=masking))
        assert said == (
            "masks of public.a have changed: rows keep their values until cdc snapshot start reads them again"
        )


def test_a_process_without_a_file_says_so() -> None:
    made = Reloading(configured("public.a"))
    assert not made.has_file
    with pytest.raises(WatershedError, match="without a configuration file"):
        made.request(made.in_force.source)

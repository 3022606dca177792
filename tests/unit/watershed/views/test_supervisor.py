"""A view's job waits for what is away, says each thing once, and notes errors only while it has the lock."""

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from cdc.config.stores import CacheConfig
from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import TableId
from sinks.errors import SinkError
from watershed.views.base import Base
from watershed.views.supervisor import ViewSupervisor

CONFIG = ViewConfig(
    base="copy", sql="SELECT id FROM orders", key=("id",), target=CacheConfig(url=SecretStr("redis://localhost"))
)


class FakeBase:
    """Has no tables, then tables without the view's; its lock may be another process's."""

    kept: Collection[TableId] = ()

    def __init__(self, places: Iterator[Any], noted: list[tuple[str, str | None]], has_lock: bool) -> None:
        self._places, self._noted, self._has_lock = places, noted, has_lock

    def __enter__(self) -> "FakeBase":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def install(self) -> None:
        pass

    def lock(self, _: str) -> bool:
        return self._has_lock

    def places(self) -> Any:
        return next(self._places)

    def columns(self, places: Any) -> Any:
        return {table: {"id": "1 bigint"} for table in places}

    def note_error(self, _: str, error: WatershedError, state: str | None) -> None:
        self._noted.append((error.message, state))


class Ending(threading.Event):
    """Is set after some waits, which it does not wait for."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits, self.waited = waits, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self.waits:
            self.set()
        return True


def keeper(open_base: Callable[[], Any]) -> ViewSupervisor:
    return ViewSupervisor("documents", CONFIG, cast("Callable[[], Base]", open_base), _unused, _unused)


def _unused() -> Any:
    pytest.fail("not before the base has the view's tables")


def test_it_waits_longer_for_what_stays_away_and_says_it_once() -> None:
    noted: list[tuple[str, str | None]] = []
    ending = Ending(6)
    base = FakeBase(iter([{}] * 6), noted, has_lock=True)
    with capture_logs() as logs:
        keeper(lambda: base).run(ending)
    assert [(one["event"], one["next"]) for one in logs] == [("view waits", "cdc sink run copy")]
    assert ending.waited == [2, 4, 8, 16, 30, 30]
    assert noted == [("view documents: its base copy holds no tables yet", None)] * 6


def test_another_error_is_said_as_it_comes() -> None:
    errors = iter([SinkError("one", "wait"), SinkError("one", "wait"), SinkError("other", "wait")])

    def away() -> Any:
        raise next(errors)

    ending = Ending(3)
    with capture_logs() as logs:
        keeper(away).run(ending)
    assert [one["error"] for one in logs] == ["one", "other"]
    assert ending.waited == [2, 4, 2]


def test_a_table_that_the_bases_sink_has_yet_to_prepare_is_waited_for() -> None:
    noted: list[tuple[str, str | None]] = []
    base = FakeBase(iter([{TableId("public", "customers"): ("public", "customers")}] * 2), noted, has_lock=True)
    base.kept = {TableId("public", "orders")}
    keeper(lambda: base).run(Ending(2))
    message = "view documents: the sink of its base copy has not prepared public.orders yet"
    assert noted == [(message, None)] * 2


def test_a_view_whose_table_is_not_captured_fails_and_its_status_says_so() -> None:
    noted: list[tuple[str, str | None]] = []
    base = FakeBase(iter([{TableId("public", "customers"): ("public", "customers")}]), noted, has_lock=True)
    with pytest.raises(ConfigError, match=r"it reads public\.orders, which its base does not hold"):
        keeper(lambda: base).run(threading.Event())
    ((error, state),) = noted
    assert "public.orders" in error
    assert state == "failed"


def test_nothing_is_noted_while_another_process_keeps_the_view() -> None:
    noted: list[tuple[str, str | None]] = []
    base = FakeBase(iter([]), noted, has_lock=False)
    ending = Ending(1)
    with capture_logs() as logs:
        keeper(lambda: base).run(ending)
    assert "another process runs it" in logs[0]["error"]
    assert noted == []

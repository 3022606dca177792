"""A wait over positions that come one poll after another, by a clock that only polls move."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.model.control import PositionRecord, TopicState
from cdc.model.errors import UnreachableError
from tests.support.pipeline_records import position, sink
from tests.support.sink_job import write_config
from tests.support.status_facts import source_end
from watershed.client import waiting
from watershed.client.applied import Positions, WaitError
from watershed.client.pipeline_watch import CHECK_S, POLL_S, PipelineWatch
from watershed.client.waiting import Waiter, WaitTimeoutError, read_lsn, sinks_of, wait_for

LSN = 1000


class Watched:
    """Takes the place of PipelineWatch and of its tail: each poll brings the next positions, the last ones stay."""

    def __init__(self, *known: Positions) -> None:
        self.tail = self
        self.now = 50.0
        self.known = list(known)
        self.calls: list[str] = []
        self.polls: list[float] = []
        self.on_answer: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def read_to_end(self) -> None:
        self.calls.append("read to end")

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        self.polls.append(timeout_s)
        self.now += timeout_s
        if timeout_s and len(self.known) > 1:
            del self.known[0]
        return set()

    def position(self) -> PositionRecord | None:
        return self.known[0].capture

    def positions(self) -> Positions:
        return self.known[0]

    def require_answer(self) -> None:
        self.calls.append(f"require answer at {self.now - 50.0:.1f}")
        self.on_answer()

    def close(self) -> None:
        self.calls.append("close watch")


class Source:
    """Takes the place of PostgresSourceReader."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def read_end(self) -> object:
        return source_end(5000)

    def close(self) -> None:
        self.calls.append("close source")


def at(lsn: int, **fields: Any) -> Positions:
    """Capture and the sink have tables a, b and c."""
    topics = {f"shop.public.{name}": TopicState(topic_id=name) for name in "abc"}
    shown = {"shown": {topic: state.identity for topic, state in topics.items()}}
    capture = position(1200).model_copy(update={"topics": topics})
    return Positions((sink(1, lsn).model_copy(update=shown | fields),), capture, prefix="shop")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(at(LSN - 1), at(LSN))
    monkeypatch.setattr(PipelineWatch, "of", lambda _: watched)
    monkeypatch.setattr(waiting, "PostgresSourceReader", lambda _: Source(watched.calls))
    monkeypatch.setattr(waiting, "time", watched)
    yield watched


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, "127.0.0.1:1", "shop", {})


def test_a_wait_ends_with_the_poll_that_brings_the_position(watched: Watched, config: Path) -> None:
    with Waiter(config) as waiter:
        waiter.wait_for("search", LSN)
        assert watched.polls == [0, POLL_S]
        assert watched.calls == ["read to end"]
        waiter.wait_for(None, "0/3E8")
        assert watched.polls == [0, POLL_S, 0], "it is there already"
        assert watched.calls == ["read to end"], "only once"
    assert watched.calls == ["read to end", "close source", "close watch"]


def test_a_wait_that_ends_too_late_says_what_is_missing_after_its_whole_time(watched: Watched, config: Path) -> None:
    watched.known = [Positions((sink(1, 999), sink(1, LSN, name="cache"), sink(1, 7, name="lake")), position(1200))]
    with Waiter(config) as waiter, pytest.raises(WaitTimeoutError) as late:
        waiter.wait_for(["search", "cache", "lake"], LSN, timeout=0.05)
    message, *_ = str(late.value).splitlines()
    assert message == "LSN 0/3E8 was not shown in 0.05 s: search: it is at 0/3E7; lake: it is at 0/7"
    assert watched.polls == pytest.approx([0, POLL_S, POLL_S, 0.05 - 2 * POLL_S])


def test_a_wait_without_time_looks_once(watched: Watched, config: Path) -> None:
    with Waiter(config) as waiter, pytest.raises(WaitTimeoutError):
        waiter.wait_for("search", LSN, timeout=0)
    watched.known = [at(LSN)]
    with Waiter(config) as waiter:
        waiter.wait_for("search", LSN, timeout=0)


def test_brokers_that_do_not_answer_end_a_long_wait(watched: Watched, config: Path) -> None:
    """A poll brings nothing from them, and does not say why."""
    watched.known = [at(LSN - 1)]

    def fail() -> None:
        if len(watched.calls) == 4:
            raise UnreachableError("Kafka: no answer", "start it")

    watched.on_answer = fail
    with Waiter(config) as waiter, pytest.raises(UnreachableError, match="no answer"):
        waiter.wait_for("search", LSN, timeout=60)
    first, second, third = (float(call.split()[-1]) for call in watched.calls[1:4])
    assert [first, second, third] == pytest.approx([CHECK_S, 2 * CHECK_S, 3 * CHECK_S], abs=4 * POLL_S)


def test_a_wait_names_its_tables_and_may_accept_rejected_rows(watched: Watched, config: Path) -> None:
    watched.known = [at(LSN, owed={"public.a": "it is stopped"}, rejected={"public.b": 2})]
    wait_for(config, "search", LSN, tables=["public.c"])
    assert watched.calls[-2:] == ["close source", "close watch"]
    with pytest.raises(WaitError, match=r"rejected rows of public\.b"):
        wait_for(config, "search", LSN, tables=["public.b"])
    wait_for(config, "search", LSN, tables=["public.b"], accepts_rejected=True)
    with pytest.raises(WaitTimeoutError, match=r"in 0.1 s: search: rows of public\.a are owed: it is stopped"):
        wait_for(config, "search", LSN, 0.1, accepts_rejected=True)
    with pytest.raises(WaitTimeoutError, match=r"search: table public\.d is not captured"):
        wait_for(config, "search", LSN, 0.1, tables=["public.d"])
    with pytest.raises(WaitError, match=r"'orders' is not schema\.table"):
        wait_for(config, "search", LSN, tables=["orders"])


def test_the_timeline_of_the_lsn_is_compared(watched: Watched, config: Path) -> None:
    with pytest.raises(WaitError, match="belongs to timeline 2"):
        wait_for(config, "search", LSN, 1.0, 2)
    wait_for(config, "search", LSN, 1.0, 1)
    assert watched.known == [at(LSN)]


def test_the_sinks_to_wait_for_are_those_that_are_named_or_all() -> None:
    assert sinks_of("search", []) == ["search"]
    assert sinks_of(("search", "cache"), ["lake"]) == ["search", "cache"]
    names = ["search", "cache", "lake", "files", "search", "base"]
    assert sinks_of(None, names) == ["base", "cache", "files", "lake", "search"]
    for none in (None, ()):
        with pytest.raises(WaitError, match="no sink has published a position yet"):
            sinks_of(none, [])


def test_an_lsn_is_a_number_or_what_postgresql_prints() -> None:
    assert read_lsn(1000) == 1000
    assert read_lsn("1/3E8") == (1 << 32) + 1000
    with pytest.raises(WaitError, match="3E8") as refused:
        read_lsn("3E8")
    assert "for example 0/16B3748" in refused.value.hint

"""Observations in the background."""

import threading
from collections.abc import Iterator, Mapping

import pytest

from cdc.model.errors import UnreachableError
from tests.support.status_facts import condition, config, source, topics, view_facts
from tests.support.waiting import eventually
from watershed.client.source_facts import SourceFacts
from watershed.status.facts import TopicFacts
from watershed.status.monitor import ANSWER_AGE_S_MAX, Monitor
from watershed.status.view_facts import ViewFacts


class FakeSource:
    """Implements SourceReader. Answers, refuses, or hangs."""

    def __init__(self) -> None:
        self.error: UnreachableError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.reads = 0
        self.is_closed = False

    def read(self) -> SourceFacts:
        self.reads += 1
        self.may_answer.wait(30.0)
        if self.error is not None:
            raise self.error
        return source()

    def close(self) -> None:
        self.is_closed = True


class FakeTopics:
    """Implements TopicFactsReader."""

    def __init__(self) -> None:
        self.facts = topics()
        self.is_closed = False

    def read(self) -> TopicFacts:
        return self.facts

    def close(self) -> None:
        self.is_closed = True


class FakeBase:
    """Implements ViewReader. Answers, or hangs."""

    views = ("documents",)

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_closed = False

    def read(self) -> Mapping[str, ViewFacts]:
        self.may_answer.wait(30.0)
        return {"documents": view_facts(changes=2)}

    def close(self) -> None:
        self.is_closed = True


class World:
    def __init__(self) -> None:
        self.source, self.topics, self.base, self.now = FakeSource(), FakeTopics(), FakeBase(), 100.0
        self.monitor = Monitor(
            config(views=("documents",)),
            self.source,
            self.topics,
            lambda: (condition(),),
            lambda: self.now,
            views=(self.base,),
        )

    def view(self) -> tuple[str, int | None]:
        (view,) = self.monitor.status().views
        return view.state, view.waiting_changes

    def messages(self) -> list[str]:
        return [
            problem.message for problem in self.monitor.status().problems if problem.part not in ("capture", "view")
        ]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.source.may_answer.set()
    made.base.may_answer.set()
    made.monitor.close()


def test_before_the_first_answers_nothing_is_ready(world: World) -> None:
    assert world.messages() == ["the first answer has not come yet"] * 2


def test_answers_and_what_the_process_says_make_the_status(world: World) -> None:
    world.monitor.start()
    world.monitor.await_answers(10.0)
    status = world.monitor.status()
    assert (status.source.database, status.capture.lsn, status.capture.state) == ("shop", "0/3E8", "retrying")
    assert [problem.message for problem in status.problems] == ["Kafka: away"]


def test_a_server_that_refuses_is_a_problem_until_it_answers(world: World) -> None:
    world.source.error = UnreachableError("can't connect to PostgreSQL", "start it")
    world.monitor.start()
    world.monitor.await_answers(10.0)
    assert world.messages() == ["can't connect to PostgreSQL"]
    assert world.monitor.status().capture.lsn == "0/3E8", "the topics say it all the same"
    world.source.error = None
    eventually(lambda: not world.messages(), 10.0, "it answers")


def test_a_server_that_hangs_is_a_problem_after_a_while_and_nobody_waits_for_it(world: World) -> None:
    world.monitor.start()
    world.monitor.await_answers(10.0)
    world.source.may_answer.clear()
    reads = world.source.reads
    eventually(lambda: world.source.reads > reads, 10.0, "it is asked again, and hangs")
    assert world.messages() == []
    world.now += ANSWER_AGE_S_MAX + 1
    eventually(
        lambda: world.messages() == ["PostgreSQL does not answer"], 10.0, "the topics answer, the source does not"
    )


def test_topics_that_do_not_exist_are_no_problem(world: World) -> None:
    world.topics.facts = TopicFacts()
    world.monitor.start()
    world.monitor.await_answers(10.0)
    assert world.messages() == []


def test_what_is_open_is_closed(world: World) -> None:
    world.monitor.start()
    world.monitor.await_answers(10.0)
    world.monitor.close()
    assert (world.source.is_closed, world.topics.is_closed) == (True, True)


def test_a_base_of_views_that_hangs_holds_up_nothing_and_is_unreachable(world: World) -> None:
    world.base.may_answer.clear()
    world.monitor.start()
    world.monitor.await_answers(0.2)
    assert world.view() == ("unknown", None)
    assert world.monitor.status().source.database == "shop", "others have answered"
    world.base.may_answer.set()
    eventually(lambda: world.view() == ("serving", 2), 10.0, "the base has answered")
    world.base.may_answer.clear()
    world.now += ANSWER_AGE_S_MAX + 1
    eventually(lambda: world.view() == ("unreachable", None), 10.0, "the answer is too old")
    (problem,) = (one for one in world.monitor.status().problems if one.part == "view")
    assert (problem.message, problem.severity) == ("the base of the view does not answer", "warning")

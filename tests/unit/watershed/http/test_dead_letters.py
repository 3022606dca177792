"""Dead letters as the console shows them: how many, and whose rows."""

import threading
from collections.abc import Sequence

import anyio
import pytest

from cdc.config.config_file import Config
from cdc.model.errors import UnreachableError
from tests.support.console_pipeline import SETTINGS, ShownPipeline, letter
from watershed.client.dead_letters import DeadLetter
from watershed.http.access import ANYONE, Caller
from watershed.http.dead_letters import KEPT_S, SHOWN_MAX, WAITING_MAX, DeadLetterReader, DeadLetters
from watershed.status.model import Status

LOCAL = "127.0.0.1:8480"


class Topics:
    """The letters that reading finds, and how often they were read."""

    def __init__(self, *found: DeadLetter, settings: Config = SETTINGS) -> None:
        self.found = found
        self.settings = settings
        self.reads: list[tuple[str, ...]] = []
        self.now_s = 0.0

    def read(self, sinks: Sequence[str]) -> list[DeadLetter]:
        self.reads.append(tuple(sinks))
        return [one for one in self.found if one.sink in sinks]

    def shown(self, host: str = LOCAL, listens: str = "127.0.0.1") -> DeadLetters:
        http = self.settings.http.model_copy(update={"host": listens})
        letters = DeadLetterReader(self.settings.model_copy(update={"http": http}), self.read)
        return letters.shown(ShownPipeline(letters=self.found).status(), host)


def order(number: int = 1, sink: str = "search") -> DeadLetter:
    return letter(sink, "public.orders", number, "no date", {"id": number, "note": "x"})


def with_search(section: dict[str, object]) -> Topics:
    """An order's letter of a search sink that has these options."""
    search = type(SETTINGS.sinks["search"]).model_validate({"url": "http://localhost:1", **section})
    return Topics(order(), settings=SETTINGS.model_copy(update={"sinks": {**SETTINGS.sinks, "search": search}}))


def test_a_row_is_shown_with_its_reason_and_place() -> None:
    (search,) = Topics(order(7)).shown().sinks
    (one,) = search.letters
    assert (search.sink, search.total) == ("search", 1)
    assert (one.table, one.key, one.reason, one.offset) == ("public.orders", {"id": 7}, "no date", 7)
    assert (one.row, one.withheld) == ({"id": 7, "note": "x"}, "")


@pytest.mark.parametrize(
    ("found", "host", "listens", "why"),
    [
        (letter("search", "public.customers", 1, "no", {"id": 1, "email": "a@b"}), LOCAL, "127.0.0.1", "masked"),
        (letter("search", "public.orders", 1, "no", None), LOCAL, "127.0.0.1", "not kept"),
        (order(), "192.0.2.7:8480", "0.0.0.0", "remote"),  # noqa: S104
        (order(), LOCAL, "0.0.0.0", "remote"),  # noqa: S104
        (order(), "rebound.example:8480", "127.0.0.1", "remote"),
        (order(), "localhost:8480", "localhost", ""),
        (order(), "[::1]:8480", "::1", ""),
    ],
)
def test_a_row_is_withheld_where_others_can_read_it(found: DeadLetter, host: str, listens: str, why: str) -> None:
    (one,) = Topics(found).shown(host, listens).sinks[0].letters
    assert one.withheld == why
    assert (one.row is None) == (why != "")


def test_of_a_server_with_users_only_the_role_operate_sees_rows() -> None:
    topics = Topics(order())
    letters = DeadLetterReader(SETTINGS, topics.read)
    status = ShownPipeline(letters=topics.found).status()
    viewer, oncall = Caller("viewer", "read"), Caller("oncall", "operate")
    (one,) = letters.shown(status, LOCAL, viewer).sinks[0].letters
    assert (one.withheld, one.row, one.key) == ("role", None, None)
    (one,) = letters.shown(status, "watershed.example", oncall).sinks[0].letters
    assert (one.withheld, one.key) == ("", {"id": 1})


@pytest.mark.parametrize(("host", "listens"), [(LOCAL, "0.0.0.0"), ("rebound.example", "127.0.0.1")])  # noqa: S104
def test_a_key_is_withheld_where_others_can_read_it(host: str, listens: str) -> None:
    (one,) = Topics(order()).shown(host, listens).sinks[0].letters
    assert (one.key, one.row, one.reason) == (None, None, "no date")


@pytest.mark.parametrize(
    ("entry", "row", "key"),
    [
        ({"exclude": ["note"]}, {"id": 1}, {"id": 1}),
        ({"include": ["id"]}, {"id": 1}, {"id": 1}),
        ({"include": ["note"]}, {"id": 1, "note": "x"}, {"id": 1}),
        ({"mask": {"asterisks": {"id": 3}}}, None, {}),
        ({"exclude": ["id"]}, {"note": "x"}, {}),
    ],
)
def test_columns_that_the_mapping_leaves_out_are_not_shown(
    entry: dict[str, object], row: dict[str, object] | None, key: dict[str, object]
) -> None:
    (one,) = with_search({"mapping": {"public.orders": entry}}).shown().sinks[0].letters
    assert (one.row, one.key) == (row, key)


def test_a_table_that_the_sink_does_not_hold_any_more_is_not_shown() -> None:
    (one,) = with_search({"exclude_tables": ["public.orders"]}).shown().sinks[0].letters
    assert (one.table, one.row, one.key, one.withheld) == ("public.orders", None, None, "not held")


def test_columns_that_do_not_leave_the_source_any_more_are_not_shown() -> None:
    source = SETTINGS.source.model_copy(update={"exclude_columns": ("public.orders.note",)})
    (one,) = Topics(order(), settings=SETTINGS.model_copy(update={"source": source})).shown().sinks[0].letters
    assert one.row == {"id": 1}


async def asked(letters: DeadLetterReader, status: Status, times: int) -> list[object]:
    found: list[object] = [None] * times

    async def ask(number: int) -> None:
        try:
            found[number] = await letters.shown_to(status, LOCAL, ANYONE)
        except UnreachableError as error:
            found[number] = error.message

    async with anyio.create_task_group() as tasks:
        for number in range(times):
            tasks.start_soon(ask, number)
    return found


def test_while_brokers_do_not_answer_a_bounded_number_of_requests_waits_in_one_thread() -> None:
    threads: list[int] = []

    def read(_: Sequence[str]) -> Sequence[DeadLetter]:
        threads.append(threading.active_count())
        raise UnreachableError("Kafka does not answer", "")

    status = ShownPipeline(letters=(order(),)).status()
    found = anyio.run(asked, DeadLetterReader(SETTINGS, read), status, WAITING_MAX + 5)
    assert found.count("Kafka does not answer") == WAITING_MAX
    assert found.count(f"{WAITING_MAX} requests are waiting already") == 5
    assert max(threads) - min(threads) <= 1


def test_a_sink_s_own_mask_withholds_its_rows_too() -> None:
    settings = with_search({"mapping": {"public.orders": {"mask": {"asterisks": {"note": 3}}}}}).settings
    topics = Topics(order(1, "search"), order(2, "cache"))
    shown = DeadLetterReader(settings, topics.read).shown(ShownPipeline(letters=topics.found).status(), LOCAL)
    assert {one.sink: one.letters[0].withheld for one in shown.sinks} == {"search": "masked", "cache": ""}


def test_the_newest_letters_are_shown_and_all_are_counted() -> None:
    (search,) = Topics(*map(order, range(SHOWN_MAX + 20))).shown().sinks
    assert search.total == SHOWN_MAX + 20
    assert [one.offset for one in search.letters] == list(range(SHOWN_MAX + 19, 19, -1))


def test_topics_are_read_only_for_sinks_with_letters_and_once_for_all_consoles() -> None:
    topics = Topics(order())
    now = [0.0]
    letters = DeadLetterReader(SETTINGS, topics.read, lambda: now[0])
    none, some = ShownPipeline().status(), ShownPipeline(letters=topics.found).status()
    assert letters.shown(none, LOCAL).sinks == ()
    assert topics.reads == []
    letters.shown(some, LOCAL)
    letters.shown(some, LOCAL)
    assert topics.reads == [("search",)]
    now[0] = KEPT_S + 1
    letters.shown(some, LOCAL)
    assert topics.reads == [("search",), ("search",)]

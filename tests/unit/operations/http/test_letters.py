"""Dead letters as the console shows them: how many, and whose rows."""

from collections.abc import Sequence

import pytest

from monitoring.sink_letters import Letter
from operations.http.letters import KEPT_S, SHOWN_MAX, DeadLetters, Letters
from tests.support.console_pipeline import SETTINGS, ShownPipeline, letter

LOCAL = "127.0.0.1:8480"


class Topics:
    """The letters that reading finds, and how often they were read."""

    def __init__(self, *found: Letter) -> None:
        self.found = found
        self.reads: list[tuple[str, ...]] = []
        self.now_s = 0.0

    def read(self, sinks: Sequence[str]) -> list[Letter]:
        self.reads.append(tuple(sinks))
        return [one for one in self.found if one.sink in sinks]

    def shown(self, host: str = LOCAL, listens: str = "127.0.0.1") -> DeadLetters:
        http = SETTINGS.http.model_copy(update={"host": listens})
        letters = Letters(SETTINGS.model_copy(update={"http": http}), self.read)
        return letters.shown(ShownPipeline(letters=self.found).status(), host)


def order(number: int = 1, sink: str = "search") -> Letter:
    return letter(sink, "public.orders", number, "no date", {"id": number, "note": "x"})


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
def test_a_row_is_withheld_where_others_can_read_it(found: Letter, host: str, listens: str, why: str) -> None:
    (one,) = Topics(found).shown(host, listens).sinks[0].letters
    assert one.withheld == why
    assert (one.row is None) == (why != "")


def test_a_sink_s_own_mask_withholds_its_rows_too() -> None:
    section = type(SETTINGS.sinks["search"]).model_validate(
        {"url": "http://localhost:1", "mapping": {"public.orders": {"mask": {"asterisks": {"note": 3}}}}}
    )
    settings = SETTINGS.model_copy(update={"sinks": {**SETTINGS.sinks, "search": section}})
    topics = Topics(order(1, "search"), order(2, "cache"))
    shown = Letters(settings, topics.read).shown(ShownPipeline(letters=topics.found).status(), LOCAL)
    assert {one.sink: one.letters[0].withheld for one in shown.sinks} == {"search": "masked", "cache": ""}


def test_the_newest_letters_are_shown_and_all_are_counted() -> None:
    (search,) = Topics(*map(order, range(SHOWN_MAX + 20))).shown().sinks
    assert search.total == SHOWN_MAX + 20
    assert [one.offset for one in search.letters] == list(range(SHOWN_MAX + 19, 19, -1))


def test_topics_are_read_only_for_sinks_with_letters_and_once_for_all_consoles() -> None:
    topics = Topics(order())
    now = [0.0]
    letters = Letters(SETTINGS, topics.read, lambda: now[0])
    none, some = ShownPipeline().status(), ShownPipeline(letters=topics.found).status()
    assert letters.shown(none, LOCAL).sinks == ()
    assert topics.reads == []
    letters.shown(some, LOCAL)
    letters.shown(some, LOCAL)
    assert topics.reads == [("search",)]
    now[0] = KEPT_S + 1
    letters.shown(some, LOCAL)
    assert topics.reads == [("search",), ("search",)]

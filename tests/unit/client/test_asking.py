"""What a wait asks next, and what an answer means; without a server."""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from watershed_client import (
    HistoryChangedError,
    NotShownInTimeError,
    RefusedError,
    SetupError,
    UnreachableError,
    Written,
)
from watershed_client.asking import Address, Wait

SHOWN = {"is_shown": True, "lsn": "0/1F4", "sinks": ["cache", "search"]}


def wait(timeout: float = 10.0, url: str = "http://w:8480", **changed: Any) -> Wait:
    options: dict[str, Any] = {
        "sink": "search",
        "lsn": "0/1F4",
        "timeline": None,
        "tables": (),
        "accepts_rejected": False,
    }
    return Wait(Address(url, None), timeout=timeout, **options | changed)


def query(asked: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(asked).query)


def body(**content: Any) -> bytes:
    return json.dumps(content).encode()


def failure(**more: Any) -> bytes:
    return body(error="LSN 0/1F4 was not shown", next="wait longer", **more)


def test_the_question_has_all_that_is_asked_for() -> None:
    made = wait(
        url="https://proxy/pipe/",
        sink=["search", "my cache"],
        lsn=Written("1/ABCDEF0", 3),
        tables=["public.orders&x", "a.b"],
        accepts_rejected=True,
    )
    path = made.begin()
    assert path.startswith("/pipe/v1/wait?")
    found = query(path)
    assert 9.0 < float(found.pop("timeout")[0]) <= 10.0
    assert found == {
        "lsn": ["1/ABCDEF0"],
        "sink": ["search", "my cache"],
        "table": ["a.b", "public.orders&x"],
        "accept_rejected": ["true"],
        "timeline": ["3"],
    }
    assert query(wait(sink=None, lsn=0x1_0ABC_DEF0).begin())["lsn"] == ["1/ABCDEF0"]
    assert "sink" not in query(wait(sink=None).begin())


def test_only_an_answer_about_this_question_ends_it() -> None:
    made = wait()
    made.begin()
    made.answer(200, body(**SHOWN))
    assert made.is_shown
    for content in (
        b"<html>Please log in</html>",
        b"[]",
        b"{}",
        body(**SHOWN | {"lsn": "0/1F3"}),
        body(**SHOWN | {"sinks": ["cache"]}),
        body(**SHOWN | {"is_shown": 1}),
        body(sink="search", applied_lsn="0/1F4"),
    ):
        made = wait()
        made.begin()
        with pytest.raises(SetupError, match="is not one of Watershed"):
            made.answer(200, content)
        assert not made.is_shown


def test_a_long_wait_is_several_questions_about_one_epoch() -> None:
    made = wait(timeout=3600.0)
    assert query(made.begin())["timeout"] == ["20.000"]
    made.answer(504, failure(epoch=4))
    assert (made.is_shown, made.pause_s) == (False, 0.0)
    assert query(made.begin())["epoch"] == ["4"]
    made.failed("the connection was lost")
    assert made.pause_s > 0
    assert query(made.begin())["epoch"] == ["4"]
    made.answer(200, body(**SHOWN))
    assert made.is_shown


def test_a_request_that_is_lost_before_an_epoch_is_known_ends_the_wait() -> None:
    """The next one might be about another history."""
    losses: list[Callable[[Wait], None]] = [
        lambda made: made.failed("reset"),
        lambda made: made.answer(503, failure()),
        lambda made: made.answer(502, b""),
    ]
    for lose in losses:
        made = wait()
        made.begin()
        with pytest.raises(UnreachableError, match="w:8480"):
            lose(made)


def test_a_question_that_was_not_taken_is_asked_again() -> None:
    made = wait()
    pauses = []
    for number in range(8):
        made.begin()
        if number % 2:
            made.answer(429, failure())
        else:
            made.failed("refused", is_asked=False)
        pauses.append(made.pause_s)
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses[-1] == 1.0
    assert "epoch" not in query(made.begin())


def test_after_the_timeout_the_last_answer_is_the_error() -> None:
    made = wait(timeout=0.0)
    assert query(made.begin())["timeout"] == ["0.000"]
    with pytest.raises(NotShownInTimeError) as late:
        made.answer(504, failure(epoch=4))
    assert (late.value.message, late.value.hint) == ("LSN 0/1F4 was not shown", "wait longer")
    assert isinstance(late.value, TimeoutError)
    refusals: list[Callable[[Wait], None]] = [
        lambda made: made.answer(429, failure()),
        lambda made: made.failed("refused", is_asked=False),
    ]
    for refuse in refusals:
        made = wait(timeout=0.0)
        made.begin()
        with pytest.raises(UnreachableError):
            refuse(made)


@pytest.mark.parametrize(
    ("code", "content", "error"),
    [
        (404, body(error="no sink 'x' has published a position", next="start it"), RefusedError),
        (404, body(error="Not Found", next="GET /openapi.json has all routes"), SetupError),
        (404, b"not here", SetupError),
        (409, failure(), HistoryChangedError),
        (400, failure(), SetupError),
        (401, body(error="a token is needed", next="send it"), SetupError),
        (421, failure(), SetupError),
        (302, b"", SetupError),
    ],
)
def test_other_answers_are_errors_at_once(code: int, content: bytes, error: type[Exception]) -> None:
    made = wait()
    made.begin()
    with pytest.raises(error):
        made.answer(code, content)


@pytest.mark.parametrize(
    "changed", [{"sink": []}, {"timeout": -1.0}, {"timeout": float("nan")}, {"tables": "public.orders"}]
)
def test_a_call_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        wait(**changed)


@pytest.mark.parametrize("url", ["w:8480", "ftp://w", "http://", "http://w:99999", "http://a:b@w", "http://w/?x=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="the address is not"):
        Address(url, None)


def test_a_token_is_a_header_and_no_line_of_one() -> None:
    assert Address("http://w:1", "a" * 20).headers["Authorization"] == f"Bearer {'a' * 20}"
    assert "Authorization" not in Address("http://[::1]:8480", None).headers
    with pytest.raises(SetupError) as refused:
        Address("http://w:1", "secret\r\nX: y")
    assert "secret" not in str(refused.value)


def test_a_question_takes_no_time_of_its_own() -> None:
    began = time.monotonic()
    made = wait(timeout=100.0)
    for _ in range(1000):
        made.begin()
        made.answer(504, failure(epoch=1))
    assert time.monotonic() - began < 5.0

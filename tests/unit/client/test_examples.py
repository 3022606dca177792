"""The applications of docs/how-to/read-your-own-writes.md, as they are printed there: each waits at a server that shows
the LSN or not. Only the database is replaced."""

import asyncio
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.support.sources import ROOT
from tests.unit.client.test_waiting import LATE, SHOWN, answer, answering

PAGE: Final = ROOT / "docs/how-to/read-your-own-writes.md"
NEEDED: Final = {"fastapi": "fastapi", "django": "django"}


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"the page has no example {name}"
    return found[1]


@pytest.mark.parametrize("name", NEEDED)
def test_the_examples_are_python(name: str) -> None:
    compile(example(name), name, "exec")


def requires(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


class Database:
    """A connection that notes what is executed, as psycopg's asynchronous one and as Django's."""

    info = SimpleNamespace(transaction_status=0)

    def __init__(self) -> None:
        self.log: list[str] = []

    async def __aenter__(self) -> "Database":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def execute(self, statement: str, parameters: Any = ()) -> Any:
        self.log.append(f"{statement.split()[0]} {list(parameters)}")

        async def fetchone() -> tuple[str, int]:
            return "0/1F4", 1

        return SimpleNamespace(fetchone=fetchone)

    async def commit(self) -> None:
        self.log.append("commit")

    async def rollback(self) -> None:
        self.log.append("rollback")


@pytest.fixture(params=[True, False], ids=["shown", "late"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether the server says that the LSN is shown."""
    late = LATE.replace("not yet", "LSN 0/1F4 was not shown")
    given = answer(200, SHOWN) if request.param else answer(504, late)
    monkeypatch.setenv("DATABASE_URL", "postgresql://nowhere")
    with answering(given) as url:
        monkeypatch.setenv("WATERSHED_URL", url)
        yield request.param


def run(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name}
    text = example(name).replace("timeout=5", "timeout=0.2")
    exec(compile(text, name, "exec"), names)  # noqa: S102  the page's own text
    return names


@requires("fastapi")
def test_the_application_of_fastapi_waits_until_the_index_shows_the_change(
    server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, database = run("fastapi"), Database()

    async def connect(_: str) -> Database:
        return database

    monkeypatch.setattr(names["psycopg"].AsyncConnection, "connect", connect)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/orders/7/pay", "query_string": b"", "headers": []}
    scope |= {"http_version": "1.1", "scheme": "http", "root_path": "", "server": ("x", 80), "client": ("x", 1)}
    asyncio.run(names["app"](scope, receive, send))
    code, body = sent[0]["status"], json.loads(sent[1]["body"])
    assert database.log == ["UPDATE [7]", "commit", "SELECT []", "rollback"]
    assert (code, body) == (
        (200, {"is_searchable": True})
        if server
        else (503, {"detail": "paid, but not searchable yet: LSN 0/1F4 was not shown"})
    )


@requires("django")
def test_the_view_of_django_waits_until_the_index_shows_the_change(
    server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.conf import settings  # type: ignore[import-not-found,unused-ignore]

    if not settings.configured:
        settings.configure(DATABASES={})
    names, log = run("django"), list[str]()

    class Cursor(AbstractContextManager["Cursor"]):
        def __exit__(self, *_: object) -> None:
            log.append("closed")

        def execute(self, statement: str, parameters: Any = ()) -> None:
            log.append(f"{statement.split()[0]} {list(parameters)}")

        def fetchone(self) -> tuple[str, int]:
            return "0/1F4", 1

        def close(self) -> None:
            log.append("closed")

    class Atomic(AbstractContextManager[None]):
        def __enter__(self) -> None:
            log.append("begin")

        def __exit__(self, *_: object) -> None:
            log.append("commit")

    connection = SimpleNamespace(cursor=Cursor, in_atomic_block=False, get_autocommit=lambda: True)
    names["connection"] = connection
    monkeypatch.setattr(names["transaction"], "atomic", Atomic)
    view: Callable[..., Any] = names["pay"]
    found = view(None, 7)
    assert log == ["begin", "UPDATE [7]", "closed", "commit", "SELECT []", "closed"]
    assert (found.status_code, json.loads(found.content)) == (
        (200, {"is_searchable": True})
        if server
        else (503, {"error": "paid, but not searchable yet: LSN 0/1F4 was not shown"})
    )

"""A database of the test's own, as PostgreSQL and as a SQLite file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.config.stores import SqlConfig
from sinks.retries import Retries
from sinks.sql.sink import SqlSink
from tests.conformance.stores import url_of

Open = Callable[..., SqlSink]


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return url_of(request.getfixturevalue("fresh_database"))


@pytest.fixture
def open_sink(url: str) -> Iterator[Open]:
    """Opens sinks on the database, with options of their section; closed at the end."""
    opened: list[SqlSink] = []

    def open_one(**options: Any) -> SqlSink:
        config = SqlConfig.model_validate({"url": SecretStr(url), **options})
        opened.append(SqlSink.open(config, "shop", Retries(attempt_count_max=2)))
        if opened[-1].generation() is None:
            opened[-1].begin_generation(1)
        return opened[-1]

    yield open_one
    for sink in opened:
        sink.close()

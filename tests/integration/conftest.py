"""Databases under capture and bases of views, for the tests on real servers; and a browser for the console."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import LiteralString

import pytest
from playwright.sync_api import Browser

from cdc.config.stores import SqlConfig
from sinks.sql.sink import SqlSink
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.browser import opened_browser
from tests.support.captured import Captured, under_capture
from tests.support.console_browser import Opener
from tests.support.view_tables import SHOP
from tests.support.views import Views, base_config, base_sink
from tests.support.workload import SCHEMA, TABLES

ITEMS, OTHER = "public.items", "public.other"
SMALL: LiteralString = "CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY);"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as found:
        yield found


@pytest.fixture
def opener(browser: Browser) -> Iterator[Opener]:
    with ExitStack() as closing:
        yield Opener(browser, closing)


@pytest.fixture
def captured(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A database with the workload's tables, on PostgreSQL 18."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        yield made


@pytest.fixture
def captured16(
    postgres16: PostgresServer, kafka: KafkaBroker, fresh_database16: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """The same on PostgreSQL 16."""
    with under_capture(postgres16, kafka, fresh_database16, unique, tmp_path, SCHEMA, TABLES) as made:
        yield made


@pytest.fixture
def items(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A database with two small tables, of which one is captured."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SMALL, [ITEMS]) as made:
        yield made


@pytest.fixture
def items16(
    postgres16: PostgresServer, kafka: KafkaBroker, fresh_database16: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """The same on PostgreSQL 16."""
    with under_capture(postgres16, kafka, fresh_database16, unique, tmp_path, SMALL, [ITEMS]) as made:
        yield made


@pytest.fixture
def items15(postgres15: PostgresServer, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Captured]:
    """The same on PostgreSQL 15, where it is installed."""
    with (
        new_database(postgres15) as dsn,
        under_capture(postgres15, kafka, dsn, unique, tmp_path, SMALL, [ITEMS]) as made,
    ):
        yield made


@pytest.fixture
def items17(postgres17: PostgresServer, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Captured]:
    """The same on PostgreSQL 17, where it is installed."""
    with (
        new_database(postgres17) as dsn,
        under_capture(postgres17, kafka, dsn, unique, tmp_path, SMALL, [ITEMS]) as made,
    ):
        yield made


@pytest.fixture
def config(fresh_database: str) -> SqlConfig:
    """The section of the sink that keeps the base of views."""
    return base_config(fresh_database)


@pytest.fixture
def shop(config: SqlConfig) -> Iterator[SqlSink]:
    """The sink that keeps the tables of the shop in the base."""
    with base_sink(config, SHOP) as sink:
        yield sink


@pytest.fixture
def views(config: SqlConfig, fresh_database: str) -> Views:
    """Jobs of views over the base."""
    return Views(config, fresh_database)

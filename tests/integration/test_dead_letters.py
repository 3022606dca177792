"""Poisoned rows of five kinds among many: exactly they are dead letters, everything else is in the store."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from cdc.config.config_file import Config
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import stored_rows
from watershed.client.dead_letters import read_dead_letters

COLUMNS: Final = {
    "id": (20, "bigint"),
    "name": (25, "text"),
    "born": (1082, "date"),
    "seen": (1114, "timestamp without time zone"),
    "moment": (1184, "timestamp with time zone"),
    "grid": (1007, "integer[]"),
}
POISON: Final = (
    {"born": "infinity"},
    {"born": "0044-03-15 BC"},
    {"seen": "-infinity"},
    {"moment": "12024-01-01 00:00:00+00"},
    {"grid": [[1, 2], [3, 4]]},
)
POISONED: Final = 17
OF_TRANSACTION: Final = 10_000


@dataclass
class Poisoned:
    feed: Feed
    config_path: Path
    rows: int
    numbers: frozenset[int]


@pytest.fixture(params=[20_000, pytest.param(100_000, marks=pytest.mark.long)])
def poisoned(request: pytest.FixtureRequest, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Poisoned]:
    """A table whose rows are published before a sink runs."""
    rows: int = request.param
    feed = Feed(kafka.bootstrap_servers, f"t{secrets.token_hex(5)}")
    feed.add_table("people", COLUMNS, ["id"])
    numbers = frozenset(Random(17).sample(range(rows), POISONED))
    kinds = {number: POISON[at % len(POISON)] for at, number in enumerate(sorted(numbers))}
    for start in range(0, rows, OF_TRANSACTION):
        feed.begin()
        for number in range(start, start + OF_TRANSACTION):
            feed.upsert("people", **good(number) | kinds.get(number, {}))
        feed.commit()
    section = {"catalog_uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "location": f"{tmp_path}/tables"}
    config = write_config(tmp_path, kafka.bootstrap_servers, feed.prefix, {"warehouse": section})
    yield Poisoned(feed, config, rows, numbers)


def good(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"name {number}",
        "born": "2001-02-03",
        "seen": "2001-02-03T04:05:06",
        "moment": "2001-02-03T04:05:06Z",
        "grid": [number % 10],
    }


def held(config: Config, feed: Feed) -> set[int]:
    return {row.key["id"] for row in stored_rows(config, "warehouse", feed.schemas["people"])}


def test_exactly_the_poisoned_rows_are_letters_until_they_come_as_good_ones(poisoned: Poisoned) -> None:
    feed = poisoned.feed
    with SinkJob(poisoned.config_path, "warehouse", log_level="info") as job:
        record = job.wait_applied(feed.progress(), "warehouse")["warehouse"]
        found = read_dead_letters(job.config, ["warehouse"])
        assert {letter.row.key["id"] for letter in found} == poisoned.numbers
        assert record.dead_letters == POISONED
        columns = {letter.row.reason.partition(" (")[0] for letter in found}
        assert columns == {"column born", "column seen", "column moment", "column grid"}
        assert held(job.config, feed) == set(range(poisoned.rows)) - poisoned.numbers
        # The cause is removed, and capture publishes the rows again.
        feed.begin()
        for number in sorted(poisoned.numbers):
            feed.upsert("people", op="r", **good(number))
        feed.commit()
        record = job.wait_applied(feed.progress(), "warehouse")["warehouse"]
        assert (record.dead_letters, read_dead_letters(job.config, ["warehouse"])) == (0, [])
        assert held(job.config, feed) == set(range(poisoned.rows))
        assert job.terminate()[0] == 0

"""Random queries as views: each that is accepted is kept while its tables change, and is compared with its query after
every step. It looks for queries whose changed rows are traced to too few keys.

    python -m tests.faults.view_query_campaign --minutes 10

Each episode is a seed, with a base and forty queries. Its result is a line in `episodes.jsonl`; a campaign that is
started again goes on behind the last one. `--seed 17` repeats one.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigError
from sinks.errors import SinkError
from tests.conftest import PostgresServer, new_database
from tests.faults.episodes import Told, run_episodes
from tests.support.random_queries import random_query
from tests.support.view_tables import SHOP, Query
from tests.support.views import Views, Workload, base_config, base_sink, until_idle
from watershed.devstack.stack import Stack

STEPS: Final = 25  # for each query
QUERIES: Final = 40  # for each base


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one query."""

    rows: int = 0  # that were compared
    refusal: str = ""
    failure: str = ""


def episode(seed: int, stack: Stack, _folder: Path) -> Told:
    """Keeps the queries of this seed in one base. Returns what became of them."""
    began = time.monotonic()
    endpoints = stack.start("postgres")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    with new_database(server) as dsn:
        outcomes = list(outcomes_of(dsn, range(seed * 1000, seed * 1000 + QUERIES)))
    refused = Counter(outcome.refusal[:60] for outcome in outcomes if outcome.refusal)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "kept": sum(1 for outcome in outcomes if not outcome.refusal and not outcome.failure),
        "refused": refused.total(),
        "rows_compared": sum(outcome.rows for outcome in outcomes),
        "refused_for": dict(refused.most_common()),
        "failures": [outcome.failure for outcome in outcomes if outcome.failure],
    }


def outcomes_of(dsn: str, seeds: Iterable[int]) -> Iterator[Outcome]:
    """Keeps the query of each seed for some steps, in one base."""
    config = base_config(dsn)
    views = Views(config, dsn)
    with base_sink(config, SHOP) as sink:
        workload = Workload(sink, SHOP, 1)
        workload.fill()
        for seed in seeds:
            query = random_query(seed)
            try:
                yield Outcome(rows=kept(f"q{seed}", query, views, workload))
            except ConfigError as error:
                yield Outcome(refusal=str(error).partition(": ")[2])
            except Exception as error:  # noqa: BLE001 - a query that fails does not end the others
                text = f"seed {seed}: {query.text}, key {query.key}: {type(error).__name__}: {error}"
                yield Outcome(failure=text[:3000])


def kept(name: str, query: Query, views: Views, workload: Workload) -> int:
    """Returns the number of rows that were compared. Raises AssertionError with the step at which they differed,
    ConfigError if two rows have the same key: such a key is rejected."""
    rows = 0

    def compared() -> int:
        until_idle(maintainer)
        if base.key_finding(maintainer._definition).level == "fail":
            raise ConfigError(f"view {name}: its key is not unique")
        return views.assert_equal(name, query)

    with views.base() as base, closing(views.open(name, views.config(query), base)) as maintainer:
        try:
            maintainer.start()
        except SinkError as error:
            raise ConfigError(error.message) if "rows have the key" in error.message else error from None
        rows += compared()
        for step in range(STEPS):
            workload.step()
            try:
                rows += compared()
            except AssertionError as error:
                raise AssertionError(f"step {step}: {error}") from None
        base.remove(name)  # its triggers would slow the next one
    return rows


def main() -> int:
    return run_episodes(__doc__, "view-query-campaign", episode, lambda reported: not reported["failures"])


if __name__ == "__main__":
    sys.exit(main())

"""Random queries as views: each that is accepted is kept while its tables change, and is compared with its query after
every step. It looks for queries whose changed rows are traced to too few keys. The end is one line of JSON; the exit
code is 1 if a view was not its query's result.

    python -m tests.faults.view_query_campaign --minutes 10 --seed 1
"""

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc.model.errors import ConfigError
from devstack.stack import Stack
from tests.conftest import PostgresServer, new_database
from tests.support.random_queries import random_query
from tests.support.view_tables import SHOP, Query
from tests.support.views import Views, Workload, base_config, base_sink, until_idle

STEPS: Final = 25  # for each query
QUERIES: Final = 40  # for each base


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one query."""

    rows: int = 0  # that were compared
    refusal: str = ""
    failure: str = ""


def campaign(server: PostgresServer, minutes: float, seed: int) -> dict[str, Any]:
    """Bases with the shop's tables, one after the other, each with views of random queries."""
    outcomes: list[Outcome] = []
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        with new_database(server) as dsn:
            for outcome in outcomes_of(dsn, range(seed + len(outcomes), seed + len(outcomes) + QUERIES)):
                outcomes.append(outcome)
                if time.monotonic() > end:
                    break
    refused = Counter(outcome.refusal[:60] for outcome in outcomes if outcome.refusal)
    return {
        "minutes": minutes,
        "kept": sum(1 for outcome in outcomes if not outcome.refusal and not outcome.failure),
        "refused": refused.total(),
        "rows_compared": sum(outcome.rows for outcome in outcomes),
        "refused_for": dict(refused.most_common(20)),
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
    """Returns the number of rows that were compared. Raises AssertionError with the step at which they differed."""
    rows = 0
    with views.base() as base, closing(views.open(name, views.config(query), base)) as maintainer:
        maintainer.start()
        until_idle(maintainer)
        rows += views.assert_equal(name, query)
        for step in range(STEPS):
            workload.step()
            until_idle(maintainer)
            try:
                rows += views.assert_equal(name, query)
            except AssertionError as error:
                raise AssertionError(f"step {step}: {error}") from None
        base.remove(name)  # its triggers would slow the next one
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000) * 1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watershed-queries-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account than ours
        with Stack(folder / "stack", given={}) as stack:
            endpoints = stack.start("postgres")
            server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
            found = campaign(server, arguments.minutes, arguments.seed)
    print(json.dumps({"seed": arguments.seed, **found}, indent=1))
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

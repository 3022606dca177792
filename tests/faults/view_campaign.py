"""Views for as long as wanted: random changes under every recipe of the documentation and every query of the tests,
with jobs that end without warning.

    python -m tests.faults.view_campaign --minutes 60

Each episode is a seed, with which every query runs once, in a base of its own. Its result is a line in
`episodes.jsonl`; a campaign that is started again goes on behind the last one. `--seed 17` repeats one.
"""

import random
import sys
import time
from pathlib import Path

from tests.conftest import PostgresServer, new_database
from tests.faults.episodes import Told, run_episodes
from tests.support.folds import FoldViews, documented
from tests.support.view_queries import VIEWS
from tests.support.view_tables import Query, recipes
from tests.support.views import Views, Workload, base_config, base_sink, random_run
from watershed.devstack.stack import Stack


def episode(seed: int, stack: Stack, folder: Path) -> Told:
    """Runs every query with this seed. Returns what was compared, and what failed."""
    began = time.monotonic()
    endpoints = stack.start("postgres")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    folder.mkdir(parents=True)
    sys.path.append(str(folder))  # the documented functions of folds are written there
    folds = documented(folder)
    queries = {**VIEWS, **recipes()}
    queries |= {name: Query(section["sql"], section["key"]) for name, section in folds.items()}
    rows: dict[str, int] = {}
    failures: list[str] = []
    fills = kills = 0
    for name, query in queries.items():
        with new_database(server) as dsn:
            config = base_config(dsn)
            views = FoldViews.of_section(config, dsn, folds[name]) if name in folds else Views(config, dsn)
            try:
                with base_sink(config, query.tables) as sink:
                    workload = Workload(sink, query.tables, seed)
                    jobs = random.Random(seed).randint(3, 12)
                    run = random_run(name, query, views, workload, seed, jobs=jobs)
                    rows[name], kills = run.rows, kills + run.kills
            except Exception as error:  # noqa: BLE001 - a run that fails does not end the others
                failures.append(f"{name}: {type(error).__name__}: {error}"[:2000])
            fills += views.waits
    sys.path.remove(str(folder))
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "queries": len(queries),
        "fills": fills,
        "kills": kills,
        "rows_compared": sum(rows.values()),
        "without_rows": sorted(name for name in queries if not rows.get(name)),
        "failures": failures,
    }


def main() -> int:
    return run_episodes(__doc__, "view-campaign", episode, lambda reported: not reported["failures"])


if __name__ == "__main__":
    sys.exit(main())

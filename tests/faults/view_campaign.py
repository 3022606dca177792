"""Views for as long as wanted: random changes under every recipe of the documentation and every query of the tests,
with jobs that end without warning. The end is one line of JSON; the exit code is 1 if a view was not its query's
result.

    python -m tests.faults.view_campaign --minutes 60
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from devstack.stack import Stack
from tests.conftest import PostgresServer, new_database
from tests.integration.test_view_maintenance import VIEWS
from tests.support.folds import FoldViews, documented
from tests.support.view_tables import Query, recipes
from tests.support.views import Views, Workload, base_config, base_sink, random_run


def campaign(server: PostgresServer, minutes: float, seed: int, folds: dict[str, Any]) -> dict[str, Any]:
    """Runs of random queries, each with a base of its own."""
    queries = {**VIEWS, **recipes()}
    queries |= {name: Query(section["sql"], section["key"]) for name, section in folds.items()}
    runs: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    failures: list[str] = []
    fills = 0
    end = time.monotonic() + minutes * 60
    names = list(queries)
    while time.monotonic() < end:
        name = names[sum(runs.values()) % len(names)]
        query, one = queries[name], seed + runs[name]
        runs[name] += 1
        with new_database(server) as dsn:
            config = base_config(dsn)
            views = FoldViews.of_section(config, dsn, folds[name]) if name in folds else Views(config, dsn)
            try:
                with base_sink(config, query.tables) as sink:
                    workload = Workload(sink, query.tables, one)
                    rows[name] += random_run(name, query, views, workload, one, jobs=random.Random(one).randint(3, 12))
            except Exception as error:  # noqa: BLE001 - a run that fails does not end the others
                failures.append(f"{name}, seed {one}: {type(error).__name__}: {error}"[:2000])
            fills += views.waits
    return {
        "minutes": minutes,
        "queries": len(queries),
        "runs": sum(runs.values()),
        "fills": fills,
        "rows_compared": sum(rows.values()),
        "without_rows": sorted(name for name in queries if not rows[name]),
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watershed-views-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account than ours
        sys.path.append(str(folder))
        with Stack(folder / "stack", given={}) as stack:
            endpoints = stack.start("postgres")
            server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
            found = campaign(server, arguments.minutes, arguments.seed, documented(folder))
    print(json.dumps({"seed": arguments.seed, **found}))
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

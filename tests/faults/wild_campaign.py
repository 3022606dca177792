"""Comparisons of a table whose rows, keys and columns change at random: each ends, and none reports drift.

    python -m tests.faults.wild_campaign --minutes 30 --folder .watershed/wild-campaign

An episode compares four stores RUNS times while the load works, and once after it has ended: then every row is decided.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.faults.drift_campaign import STORES, WAIT_S, command, not_compared, pipeline
from tests.faults.episodes import run_episodes
from tests.support import wild_load
from watershed.cli.exit_codes import PARTIAL
from watershed.devstack.stack import Stack

RUNS: Final = 3


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    reported: dict[str, Any] = {"seed": seed, "runs": [], "wrong": []}
    with pipeline(seed, stack, folder, wild_load.SCHEMA, [wild_load.WILD], wild_load.shapes) as run:
        with wild_load.WildLoad(run.dsn, 2 * seed) as load, wild_load.WildLoad(run.dsn, 2 * seed + 1) as other:
            for _ in range(RUNS):
                began = time.monotonic()
                code, report = command(run.captured, "verify")
                reported["runs"].append(
                    {
                        "seconds": round(time.monotonic() - began, 1),
                        "exit_code": code,
                        "undecided": {table["sink"]: table["undecided"] for table in report["tables"]},
                        "not_compared": not_compared(report),
                    }
                )
                print(reported["runs"][-1], flush=True)
                if code not in (0, PARTIAL) or report["drift"]:
                    reported["wrong"].append(report)
        for loaded in (load, other):
            for name in ("transactions", "truncations", "alterations"):
                reported[name] = reported.get(name, 0) + getattr(loaded, name)
        run.captured.await_caught_up(WAIT_S)
        run.job.wait_applied(run.captured.progress(), *STORES, deadline_s=WAIT_S)
        code, report = command(run.captured, "verify")
        if code:
            reported["wrong"].append(report)
    if is_true(reported):
        shutil.rmtree(folder)
    return reported


def is_true(reported: dict[str, Any]) -> bool:
    """Returns whether an episode that reported this found no fault."""
    return not reported["wrong"]


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "wild-campaign", episode, is_true))

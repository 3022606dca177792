"""Simulated runs of the mixture, one seed after the other, until the time is over or the judge complains.

    python -m tests.simulation.mixed --minutes 60 --folder .watershed/mixed-simulation

Begun again, it goes on behind the last seed that was judged. `--seed 17` repeats one.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Final

import structlog

from cdc.model.errors import WatershedError
from tests.simulation.mixed.run import Run

NEXT: Final = "next-seed"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path(".watershed/mixed-simulation"))
    parser.add_argument("--seed", type=int, help="this one alone")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    warnings.simplefilter("ignore")
    asked.folder.mkdir(parents=True, exist_ok=True)
    noted = asked.folder / NEXT
    first = int(noted.read_text(encoding="utf-8")) if noted.exists() else 0
    began, seed, transactions = time.monotonic(), first if asked.seed is None else asked.seed, 0
    while time.monotonic() < began + asked.minutes * 60:
        simulated = Run(seed)
        try:
            simulated.report()
        except (AssertionError, WatershedError) as error:
            print(f"seed {seed}, after {time.monotonic() - began:.1f} s: {error}", flush=True)
            return 1
        transactions += len(simulated.source.log)
        seed += 1
        if asked.seed is not None:
            break
        noted.write_text(str(seed), encoding="utf-8")
    print(f"seeds below {seed}: {transactions:,} transactions, no complaint", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

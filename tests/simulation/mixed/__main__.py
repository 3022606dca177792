"""Simulated runs of the mixture, one seed after the other, until the time is over or the judge complains.

python -m tests.simulation.mixed --minutes 60 --seed 1000
"""

import argparse
import sys
import time
import warnings

import structlog

from cdc.errors import WatershedError
from tests.simulation.mixed.run import Run


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    warnings.simplefilter("ignore")
    began, seed, transactions = time.monotonic(), asked.seed, 0
    while time.monotonic() < began + asked.minutes * 60:
        simulated = Run(seed)
        try:
            simulated.report()
        except (AssertionError, WatershedError) as error:
            print(f"seed {seed}, after {time.monotonic() - began:.1f} s: {error}", flush=True)
            return 1
        transactions += len(simulated.source.log)
        seed += 1
    print(f"seeds {asked.seed} to {seed - 1}: {transactions:,} transactions, no complaint", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

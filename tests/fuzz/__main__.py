"""A long run of the fuzz target. Run: python -m tests.fuzz [--minutes 10] [--seed N] [--memory-mib 1024]

With Atheris installed it is guided by coverage; without, it mutates what servers sent, in as many rounds as fit. Each
round has a seed of its own, which a finding tells. The process may use only so much memory, and an input that takes
longer than INPUT_S_MAX ends it with a stack dump.
"""

import argparse
import faulthandler
import importlib
import importlib.util
import random
import resource
import sys
import time
from typing import Any, Final

from tests.fuzz import campaign, target

ROUND_INPUTS: Final = 20_000
INPUT_S_MAX: Final = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; default: from the clock")
    parser.add_argument("--memory-mib", type=int, default=1024, help="address space of the process")
    arguments = parser.parse_args()
    limit = arguments.memory_mib * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if importlib.util.find_spec("atheris"):
        _guided(arguments.minutes)
    else:
        print("Atheris is not installed: mutations without coverage's guidance")
        _mutated(arguments.minutes, arguments.seed if arguments.seed is not None else time.time_ns() % 10**9)


def _guided(minutes: float) -> None:
    atheris: Any = importlib.import_module("atheris")  # not among the project's dependencies
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(minutes * 60)}", "-max_len=4096"], target.TestOneInput)
    atheris.Fuzz()


def _mutated(minutes: float, seed: int) -> None:
    deadline = time.monotonic() + minutes * 60
    total = campaign.Counts()
    while time.monotonic() < deadline:
        faulthandler.dump_traceback_later(INPUT_S_MAX + ROUND_INPUTS / 100, exit=True)
        try:
            total += campaign.run(random.Random(seed), ROUND_INPUTS)
        except BaseException:
            print(f"found with --seed {seed}", file=sys.stderr)
            raise
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{total.inputs:,} inputs, {total.accepted:,} of them accepted, nothing found; next seed {seed}")


if __name__ == "__main__":
    main()

"""`cdc`, as the operators' campaign starts it: with batches of the episode's length, and with a defect that is named.

Two threads of the sinks' job publish positions, one of them at the end of each batch. Where batches are short, they
meet a hundred times as often. Shorter ones than the configuration allows are put in here. A defect is also put into
the Python processes of Spark, which plan batches and run tasks (workers/sitecustomize.py).
"""

import os
from pathlib import Path
from typing import Final

from spark_jobs import runner
from spark_jobs.sink_thread import Portions
from tests.faults.operators.mutants import MUTANT, MUTANTS
from watershed.cli.main import main

BATCH: Final = "OPERATORS_BATCH_S"
HERE: Final = Path(__file__).parent
WORKERS: Final = (HERE / "workers", HERE.parents[2])  # with `sitecustomize`, and what it imports


def with_batches_of(seconds: float) -> None:
    """Lets each live batch last so long."""

    def changed(
        task_count: int, piece_bytes_max: int, live_s: float = 0.0, task_bytes_max: int | None = None
    ) -> Portions:
        return Portions(task_count, piece_bytes_max, seconds if live_s else 0.0, task_bytes_max)

    assert hasattr(runner, "Portions")
    setattr(runner, "Portions", changed)  # noqa: B010 - a class


def put_into_workers() -> None:
    """Java passes its environment on to the Python processes that it starts."""
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])


if __name__ == "__main__":
    with_batches_of(float(os.environ[BATCH]))
    if name := os.environ.get(MUTANT):
        MUTANTS[name]()
        put_into_workers()
    main()

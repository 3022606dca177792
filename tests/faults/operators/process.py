"""`cdc`, as the operators' campaign starts it: with batches of the episode's length, and with a defect that is named.

Two threads of the sinks' job publish positions, one of them at the end of each batch. Where batches are short, they
meet a hundred times as often.
"""

import os
from typing import Final

from spark_jobs import runner
from tests.faults.operators.mutants import MUTANTS
from watershed.cli.main import main

MUTANT: Final = "OPERATORS_MUTANT"
BATCH: Final = "OPERATORS_BATCH_S"

if __name__ == "__main__":
    assert hasattr(runner, "BATCH_S")
    setattr(runner, "BATCH_S", float(os.environ[BATCH]))  # noqa: B010 - a constant
    if name := os.environ.get(MUTANT):
        MUTANTS[name]()
    main()

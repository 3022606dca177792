"""Python imports this when it starts, in a process whose PYTHONPATH has this folder: Spark's planners and workers, if a
defect is named (../process.py)."""

import os

from tests.faults.operators.mutants import MUTANT, MUTANTS

if name := os.environ.get(MUTANT):
    MUTANTS[name]()

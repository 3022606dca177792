"""The line of Spark's errors that an operator needs."""

import pytest

from spark_jobs.failures import REASON_CHARS_MAX, reason

MISMATCH = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    check_python_version(infile)
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker is 3.12
than that in driver: 3.11, PySpark cannot run with different minor versions.

\tat org.apache.spark.api.python.BasePythonRunner
"""
LOST = """An error occurred while calling o12.collect.
org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed
ExecutorLostFailure (executor 1 exited unrelated to the running tasks)
\tat org.apache.spark.scheduler"""


KILLED = """Job aborted due to stage failure: Task 0 in stage 9.0 failed 1 times
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 9, in main
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
\tat org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            MISMATCH,
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker is 3.12",
        ),
        (LOST, "ExecutorLostFailure (executor 1 exited unrelated to the running tasks)"),
        (
            KILLED,
            "a Python worker of Spark lost its connection to Spark: one of its processes has ended, or was killed "
            "(BrokenPipeError: [Errno 32] Broken pipe)",
        ),
        ("one line", "one line"),
        ("", "ValueError"),
        (
            "An error occurred while calling o1.x",
            "Spark's Java process did not answer a call (An error occurred while calling o1.x)",
        ),
        ("x" * 1000, "x" * REASON_CHARS_MAX),
    ],
)
def test_the_line_that_says_most_is_found(text: str, expected: str) -> None:
    assert reason(ValueError(text)) == expected

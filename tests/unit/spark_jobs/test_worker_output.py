"""What Spark prints reaches the user, without tracebacks of workers that Java has dismissed."""

import subprocess
import sys

from spark_jobs.worker_output import without_dismissals

DISMISSED = [
    "Traceback (most recent call last):\n",
    '  File "/x/pyspark.zip/pyspark/daemon.py", line 233, in manager\n',
    '  File "/x/pyspark.zip/pyspark/daemon.py", line 87, in worker\n',
    "BrokenPipeError: [Errno 32] Broken pipe\n",
]
OTHERS = ["Traceback (most recent call last):\n", '  File "/x/job.py", line 1\n', "ValueError: no\n"]


def test_only_tracebacks_of_dismissed_workers_are_left_out() -> None:
    lines = ["WARNING: one\n", *DISMISSED, *DISMISSED, "two\n", *OTHERS, "three\n", *DISMISSED]
    assert [*without_dismissals(lines)] == ["WARNING: one\n", "two\n", *OTHERS, "three\n"]


def test_tracebacks_that_are_printed_at_once_are_left_out_too() -> None:
    begin, first, second, error = DISMISSED
    mixed = [begin, first, begin, first, second, second, error, error]
    assert [*without_dismissals(["one\n", *mixed, "two\n"])] == ["one\n", "two\n"]


def test_a_python_process_that_java_did_not_wait_for_is_left_out() -> None:
    """The sink reports that a worker failed to connect back, and starts again."""
    lines = [
        *("Traceback (most recent call last):\n", '  File "/x/pyspark/util.py", line 789, in local_connect_and_auth\n'),
        *("FileNotFoundError: [Errno 2] No such file or directory\n", "\n"),
        *("During handling of the above exception, another exception occurred:\n", "\n"),
        *("Traceback (most recent call last):\n", '  File "<frozen runpy>", line 88, in _run_code\n'),
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket: tried\n",
    ]
    assert [*without_dismissals(["one\n", *lines, "two\n", "\n"])] == ["one\n", "two\n", "\n"]


def test_whatever_else_has_a_traceback_is_passed_on() -> None:
    mixed = [DISMISSED[0], OTHERS[0], DISMISSED[1], *OTHERS[1:], DISMISSED[3]]
    assert [*without_dismissals(mixed)] == mixed
    assert [*without_dismissals(OTHERS[:2])] == OTHERS[:2], "cut off"
    closed = [OTHERS[0], OTHERS[1], DISMISSED[3]]
    assert [*without_dismissals([*closed, "two\n"])] == [*closed, "two\n"], "a connection of our own code"


def test_a_process_that_is_started_meanwhile_has_the_filter() -> None:
    text = "".join(["a line\n", *DISMISSED, "last\n"])
    code = (
        "import subprocess, sys, time\n"
        "from spark_jobs.worker_output import filtered_output\n"
        "print('before', file=sys.stderr, flush=True)\n"
        "with filtered_output():\n"
        f"    child = subprocess.Popen(['printf', '%s', {text!r}], stdout=2)\n"
        "child.wait()\n"
        "import threading\n"
        "[thread.join(5) for thread in threading.enumerate() if thread.name == 'output of Spark']\n"
        "print('after', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["before", "a line", "last", "after"]

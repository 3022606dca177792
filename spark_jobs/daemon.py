"""The daemon that forks Spark's Python workers, in place of `pyspark.daemon`.

PySpark calls `importlib.invalidate_caches()` before each task, which reads the directories of every archive on
`sys.path` again: pyspark.zip, py4j's archive and a core jar cost up to 0.5 s a task. PySpark is installed in this
environment, so these three entries are not needed and are removed. Other archives stay, also those of `--py-files`.
"""

import gc
import os
import sys
from typing import Any, Final

from pyspark import daemon

from cdc.config.logs import configure_logs_as_parent
from spark_jobs.python_processes import SHARED, import_beforehand, is_spark_archive

# Tasks decode records into dicts by the ten thousand, none of which is part of a cycle. With Python's 700 the collector
# took 15 to 30 % of a task's processor time (200,000 records into Redis: 29.4 us each, with this 22.2 to 24.7).
OBJECTS_PER_COLLECTION: Final = 100_000
# One thread of a task writes to the store while another decodes the next piece. With Python's interval of 5 ms, an
# answer of the store waits for so long before it is read.
SWITCH_INTERVAL_S: Final = 0.0005


def leave_out_archives() -> None:
    """Removes Spark's own archives from the import path of this process and of the workers that it forks."""
    for path in [path for path in sys.path if is_spark_archive(path)]:
        sys.path.remove(path)
    for path in [path for path in sys.path_importer_cache if is_spark_archive(path)]:
        del sys.path_importer_cache[path]


class FlushedFile:
    """A worker's output. Each write is sent at once: PySpark flushes after 64 KiB, which holds small rows back."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.is_closed_there = False  # by Java, which reads it

    def write(self, data: Any) -> int:
        """Writes all of it. Raises OSError."""
        try:
            count: int = self._file.write(data)
            self._file.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed_there = True
            raise
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def flush_outputs() -> None:
    """Lets workers that this process forks send their output at once."""
    run = daemon.worker_main

    def run_flushed(infile: Any, outfile: Any) -> None:
        output = FlushedFile(outfile)
        try:
            run(infile, output)
        except BaseException:
            if output.is_closed_there:  # an idle worker was dismissed: PySpark would print a traceback
                os._exit(1)
            raise

    daemon.worker_main = run_flushed


if __name__ == "__main__":
    leave_out_archives()
    gc.set_threshold(OBJECTS_PER_COLLECTION, 50, 50)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    configure_logs_as_parent()  # otherwise workers write every line, each error of the Kafka client among them
    flush_outputs()
    import_beforehand(SHARED)
    daemon.manager()  # type: ignore[no-untyped-call]

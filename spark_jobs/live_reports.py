"""Reports of a running task: its dead letters to their topic, then its offsets to the sink's consumer group.

A thread publishes while the task goes on writing. In this order, a position that a reader of the group takes covers no
rejected row without its dead letter.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.errors import WatershedError
from spark_jobs.dead_letters import DeadLetterProducer
from spark_jobs.kept import KeptClients
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import GroupOffsets, Reached, group_name
from spark_jobs.source.reading import Partition
from spark_jobs.task_report import SinkTaskConfig, TaskReport

# Dead letters that are not published yet, with more of which the task waits: one may have 16 KiB.
DEAD_LETTERS_PENDING_MAX: Final = 2_000
TRIES_MAX: Final = 5  # a broker may be starting, or have passed the group on to another
PAUSE_S: Final = 0.5
# Between two commits, unless the task ends: the driver reads them less often (spark_jobs/batches.py), and there may be
# 50 pieces a second.
COMMIT_S_MIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Clients:
    """The clients of one generation of a sink."""

    group: GroupOffsets
    dead_letters: DeadLetterProducer

    def close(self) -> None:
        self.group.close()
        self.dead_letters.close()


_clients: Final[KeptClients[_Clients]] = KeptClients()


class LiveReports:
    """The reports of one task. Methods are called by the task's thread."""

    def __init__(self, group: GroupOffsets, dead_letters: DeadLetterProducer, execution: str, task: int) -> None:
        self._group = group
        self._dead_letters = dead_letters
        self._execution = execution
        self._task = task
        self._sent: dict[Partition, int] = {}
        self._changed = threading.Condition()  # of everything below
        self._offsets: dict[Partition, Reached] = {}
        self._unpublished: DeadLetterUpdates = {}
        self._is_publishing = False
        self._is_closed = False
        self._is_finishing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="task reports", daemon=True)

    @classmethod
    @contextmanager
    def opened(cls, task_config: SinkTaskConfig, execution: str, task: int) -> Iterator[Self]:
        """Opens the reports of a task, with the clients that the worker process keeps."""
        name = group_name(task_config.prefix, task_config.sink, task_config.generation)
        clients = _clients.get(task_config.sink, task_config.generation) or _clients.keep(
            task_config.sink,
            task_config.generation,
            _Clients(
                GroupOffsets(task_config.kafka, name),
                DeadLetterProducer(task_config.kafka, task_config.prefix, task_config.sink),
            ),
        )
        with closing(cls(clients.group, clients.dead_letters, execution, task)) as reports:
            reports._thread.start()
            yield reports

    def send(self, report: TaskReport, *, is_over: bool = False) -> None:
        """Passes on what is new in the report, and takes its dead letters. Waits if too many are pending. `is_over`:
        the task reads no more, which is passed on with all of its offsets. Raises the error of an earlier report."""
        fresh = {
            partition: offset
            for partition, offset in report.end_offsets.items()
            if is_over or self._sent.get(partition, report.start_offsets.get(partition, 0)) != offset
        }
        self._sent |= fresh
        counts = report.counts
        letters, report.dead_letters = report.dead_letters, {}
        with self._changed:
            self._raise_failure()
            self._unpublished |= letters
            self._offsets |= {
                partition: Reached(
                    self._execution,
                    self._task,
                    report.start_offsets.get(partition, 0),
                    offset,
                    report.is_behind,
                    counts,
                    is_over,
                )
                for partition, offset in fresh.items()
            }
            self._changed.notify_all()
            while len(self._unpublished) > DEAD_LETTERS_PENDING_MAX and self._failure is None:
                self._changed.wait()

    def finish(self, report: TaskReport) -> None:
        """Sends the last report, and returns when all are published. Raises BrokerError, UnreachableError."""
        self.send(report, is_over=True)
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()
            while (self._unpublished or self._offsets or self._is_publishing) and self._failure is None:
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Ends the thread, after the report that it is publishing. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._unpublished or self._offsets or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
            if not self._publish_pending():
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._is_finishing, COMMIT_S_MIN)

    def _publish_pending(self) -> bool:
        """Publishes what was sent since. Returns False after a failure, which the task raises."""
        with self._changed:
            (letters, self._unpublished), (offsets, self._offsets) = (self._unpublished, {}), (self._offsets, {})
            self._is_publishing = True
        failure: Exception | None = None
        try:
            self._publish(letters, offsets)
        except Exception as error:  # noqa: BLE001 - raised to the task, which would wait for ever otherwise
            failure = error
        with self._changed:
            self._failure, self._is_publishing = failure, False
            self._changed.notify_all()
        return failure is None

    def _publish(self, letters: DeadLetterUpdates, offsets: dict[Partition, Reached]) -> None:
        for number in range(TRIES_MAX):
            try:
                self._dead_letters.publish(letters)
                self._group.commit(offsets)
            except WatershedError:
                if number == TRIES_MAX - 1:
                    raise
                with self._changed:
                    if self._is_closed or self._changed.wait_for(lambda: self._is_closed, PAUSE_S):
                        raise
            else:
                return

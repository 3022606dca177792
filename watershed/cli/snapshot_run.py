"""What `cdc snapshot` does: sends a signal and follows what it starts, and fills new stores. For commands and scripts:
what it shows, it shows by a screen and a callback.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdc.config.config_file import Config
from cdc.kafka.state_reader import read_in_force
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import NotInTimeError, WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from watershed.cli.interrupts import interrupted, sigterm_as_interrupt
from watershed.cli.snapshot_screen import ProgressScreen
from watershed.cli.store_filling import FillWatch, SinkProcess, Store, generation_to_watch, read_store, tables_to_read
from watershed.client.signal_sender import await_answer, send_signal
from watershed.status.fill_progress import FillProgress
from watershed.status.snapshot_watch import FollowedSnapshots, SnapshotWatch, await_begun, await_healed, epoch_of

LOOK_S: Final = 0.25
_BEGIN_EPOCH: Final = ("heal", "move")  # actions after which capture compares all rows under a new epoch
GOES_ON: Final = "the snapshot continues; `cdc snapshot status` shows its progress"


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """One signal with its consequences, or the filling of stores. Methods raise WatershedError."""

    config: Config
    config_file: Path  # for the job of a store that is filled
    screen: ProgressScreen
    on_answer: Callable[[str, SignalAnswer], None]  # called with the signal's id
    answer_s_max: float  # for capture's answer
    ends: float | None  # monotonic: when waiting is given up

    # ---- signals

    def send(self, record: SignalRecord, *, waits: bool) -> None:
        """Sends a signal, and follows the snapshots that it starts. Raises WatershedError if one fails."""
        with ExitStack() as stack:
            watch = stack.enter_context(closing(SnapshotWatch.of(self.config)))
            watch.read_to_end()
            epoch_before = epoch_of(watch)
            identity, answer = self._signal(record)
            if not waits or record.action not in ("snapshot", *_BEGIN_EPOCH):
                return
            if record.action in _BEGIN_EPOCH:
                requests = await_healed(watch, epoch_before)
            else:
                requests = await_begun(watch, identity, map(TableId.parse, answer.tables))
            stack.enter_context(closing(self.screen))
            followed = FollowedSnapshots(watch, requests)
            with interrupted(self.screen, GOES_ON):
                output = self._follow(watch, followed.statuses, lambda now: all(one.is_ended for one in now))
            self.screen.close()
            _require_done(output)
            if record.action in _BEGIN_EPOCH:
                _require_captured(watch)

    def _signal(self, record: SignalRecord) -> tuple[str, SignalAnswer]:
        """Sends a signal. Returns its id and the answer. Raises WatershedError if capture refuses it."""
        topics = Topics(self.config.topics.prefix)
        identity = send_signal(self.config.kafka, topics, record)
        answer = await_answer(self.config.kafka, topics, identity, self.answer_s_max)
        self.on_answer(identity, answer)
        if not answer.is_accepted:
            raise WatershedError(
                f"refused: {answer.message}", answer.next or "`cdc snapshot status` shows all snapshots"
            )
        return identity, answer

    def _follow(
        self,
        watch: SnapshotWatch,
        progress: Callable[[], list[FillProgress]],
        is_over: Callable[[Sequence[FillProgress]], bool],
        check: Callable[[], None] = lambda: None,
    ) -> list[FillProgress]:
        while True:
            now = progress()
            self.screen.show(now)
            if is_over(now):
                return now
            check()
            if self.ends is not None and time.monotonic() > self.ends:
                raise NotInTimeError(
                    "not done within --timeout",
                    "nothing to do: it continues, and `cdc snapshot status` shows its progress",
                )
            watch.poll(LOOK_S)

    # ---- stores

    def fill(self, sinks: Sequence[str], fresh: Sequence[TableId], *, is_fresh: bool, keep_running: bool) -> None:
        """Fills new stores from the topics and, where rows are missing from them, from the source.
        `is_fresh`: the rows of the tables `fresh`, or of all tables, are read too.
        """
        with ExitStack() as stack:
            watch = stack.enter_context(closing(SnapshotWatch.of(self.config)))
            watch.read_to_end()
            stores = [read_store(self.config, name) for name in sinks]
            published = watch.sinks()
            generations = {store.sink: generation_to_watch(store, published, is_fresh=is_fresh) for store in stores}
            screen = stack.enter_context(closing(self.screen))
            stack.enter_context(interrupted(screen, "stopped; the same command continues from here"))
            stack.enter_context(sigterm_as_interrupt())
            check = self._start(stack, stores)
            requests = self._read_rows(watch, fresh or None, is_fresh=is_fresh)
            filling = FillWatch(watch, generations, requests, time.monotonic)
            _require_done(self._follow(watch, filling.progress, filling.is_over, check))
            screen.close()
            screen.say(f"filled: {', '.join(sinks)}")
            if keep_running:
                self._keep_running(check)

    def _start(self, stack: ExitStack, stores: Sequence[Store]) -> Callable[[], None]:
        """Starts the job of the sinks that no job runs. Returns a function that raises if this job has ended."""
        idle = [store.sink for store in stores if not store.is_running]
        if not idle:
            return lambda: None
        process = stack.enter_context(SinkProcess(self.config, self.config_file, idle))
        self.screen.say(f"the job of {', '.join(idle)} starts; its log is {process.log}")
        return process.check

    def _read_rows(
        self, watch: SnapshotWatch, fresh: Sequence[TableId] | None, *, is_fresh: bool
    ) -> Mapping[TableId, str]:
        """Requests the rows that are wanted or missing. Returns the request's id for each table."""
        captured = read_in_force(self.config).source.stored_table_ids
        read = fresh if fresh is not None else captured if is_fresh else ()
        wanted, requests = tables_to_read(watch, dict.fromkeys([*captured, *read]), read)
        if wanted:
            names = tuple(str(table) for table in wanted)
            record = SignalRecord(action="snapshot", tables=names, requested_us=time.time_ns() // 1000)
            identity, answer = self._signal(record)
            requests |= await_begun(watch, identity, map(TableId.parse, answer.tables))
        return requests

    def _keep_running(self, check: Callable[[], None]) -> None:
        self.screen.say("its job keeps running until SIGTERM or Ctrl-C")
        try:
            while True:
                time.sleep(LOOK_S)
                check()
        except KeyboardInterrupt:
            self.screen.say("stopping")


def _require_done(progress: Sequence[FillProgress]) -> None:
    """Raises WatershedError for the first one that has ended otherwise."""
    for entry in progress:
        if entry.is_ended and entry.status != "done":
            verb = "has" if entry.status == "failed" else "was"
            why = f": {entry.message}" if entry.message else ""
            hint = "correct the cause, then `cdc snapshot resume`; start a new one to change its condition or range"
            if entry.status == "replaced":
                hint = "`cdc snapshot status` shows the new one: a user requested it, or the table was altered"
            raise WatershedError(f"the snapshot of {entry.name} {verb} {entry.status}{why}", hint)


def _require_captured(watch: SnapshotWatch) -> None:
    """Raises WatershedError if a table could not be healed, and was stopped."""
    for table, record in watch.stopped().items():
        raise WatershedError(f"table {table} is stopped, the others are healed: {record.message}", record.next)

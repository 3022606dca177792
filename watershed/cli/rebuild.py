"""`cdc rebuild`: has the sink's job rebuild its store from the topics, while the current store serves readers."""

import json
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from cdc.config.config_file import Config
from cdc.model.control import ProgressRecord
from cdc.model.errors import NotInTimeError
from cdc.model.job_records import RebuildRecord
from cdc.model.topics import Topics
from sinks.errors import SinkError
from spark_jobs.generations import Checkpoints
from watershed.cli.interrupts import interrupted, sigterm_as_interrupt
from watershed.cli.options import CONFIG, ConfigFile, Timeout, Wait, configuration
from watershed.cli.snapshot_screen import ProgressScreen, screen_for
from watershed.cli.store_filling import SinkProcess
from watershed.client.rebuild_requests import (
    UNDER_WAY,
    RebuildAction,
    cancel_rebuild,
    request_rebuild,
    require_rebuildable,
)
from watershed.status.fill_progress import FillProgress, HistoryPosition, Rate, sink_progress
from watershed.status.snapshot_watch import SnapshotWatch

LOOK_S: Final = 0.25
SILENCE_S_MAX: Final = 5.0  # a running job answers within a second


def rebuild(
    sink: Annotated[str, typer.Option("--sink", metavar="NAME", help="The sink whose store is rebuilt.")],
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Let the kept generation catch up, then switch readers back to it.")
    ] = False,
    drop_old: Annotated[bool, typer.Option("--drop-old", help="Delete the kept generation.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what is under way; readers are unaffected.")] = False,
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Build a new generation of a store from the topics while the current one serves, and swap when it has caught up.
    The former generation is kept until --drop-old. If a rebuild is under way already, the command follows it. Exits
    with 0 when the rebuild is done, 1 when it failed, was cancelled or took longer than --timeout."""
    if rollback + drop_old + cancel > 1:
        raise typer.BadParameter("--rollback, --drop-old and --cancel can't be combined")
    settings = configuration(config)
    require_rebuildable(settings, sink)
    screen = screen_for(Console(), as_json=as_json)
    command = _RebuildCommand(settings, config, sink, screen, as_json=as_json)
    action: RebuildAction = "rollback" if rollback else "drop" if drop_old else "rebuild"
    with ExitStack() as stack:
        stack.enter_context(closing(screen))
        watch = stack.enter_context(closing(SnapshotWatch.of(settings)))
        watch.read_to_end()
        if cancel:
            command.cancel(watch)
            return
        request = command.ask(watch, action)
        if not wait:
            screen.say(f"{sink}: requested; the sink's job does it, and `cdc rebuild --sink {sink}` follows it")
            return
        stack.enter_context(
            interrupted(screen, f"interrupted; run again to follow {sink}'s, or with --cancel to stop it")
        )
        stack.enter_context(sigterm_as_interrupt())
        command.follow(stack, watch, action, request, timeout)


@dataclass(frozen=True, slots=True)
class _RebuildCommand:
    """One call of the command."""

    config: Config
    config_file: Path
    sink: str
    screen: ProgressScreen
    as_json: bool
    rate: Rate = field(default_factory=Rate)

    def ask(self, watch: SnapshotWatch, action: RebuildAction) -> str:
        """Returns the id of the request: a new one, or that of the same action if it is under way already."""
        record, is_new = request_rebuild(self.config, watch, self.sink, action)
        if not is_new:
            self.screen.say(f"{self.sink}: {UNDER_WAY[action]} is under way already; this command follows it")
        return record.request

    def cancel(self, watch: SnapshotWatch) -> None:
        cancel_rebuild(self.config, watch, self.sink)
        self.screen.say(f"{self.sink}: cancelled; the sink's job deletes what it has built")

    def follow(
        self, stack: ExitStack, watch: SnapshotWatch, action: RebuildAction, request: str, timeout_s: float | None
    ) -> None:
        """Waits until the request, or another one for the same action that replaced it, has ended. Raises
        WatershedError if the rebuild was not done."""
        began = time.monotonic()
        last_change: tuple[object, float] = (None, began)
        job: SinkProcess | None = None
        while True:
            watch.poll(LOOK_S)
            record = watch.rebuild(self.sink)
            if record is None:
                continue
            if record.request != request:
                if record.action != action:
                    raise SinkError(
                        f"{self.sink}: {UNDER_WAY[record.action]} was requested at the same time, and replaced this",
                        "wait until it has ended, then run the command again",
                    )
                self.screen.say(f"{self.sink}: another command requested the same; this one follows it")
                request = record.request
            progress = self._progress(watch, record)
            self.screen.show([progress])
            if not record.is_open:
                self._end(record)
                return
            now = time.monotonic()
            state = (record, progress.done)
            last_change = (state, now) if state != last_change[0] else last_change
            if job is not None:
                job.check()
            elif now - last_change[1] > SILENCE_S_MAX and not self._runs_here():
                job = stack.enter_context(SinkProcess(self.config, self.config_file, [self.sink]))
                self.screen.say(f"no job of {self.sink} answers, so this command starts one; its log is {job.log}")
            if timeout_s is not None and now - began > timeout_s:
                raise NotInTimeError(
                    f"{self.sink}: not done in {timeout_s:g} s ({progress.message or progress.status})",
                    f"it continues while the sink's job runs: cdc rebuild --sink {self.sink} follows it",
                )

    def _progress(self, watch: SnapshotWatch, record: RebuildRecord) -> FillProgress:
        if record.status == "asked":
            return FillProgress("sink", self.sink, "waiting", 0, 0, 0.0, "the sink's job has not answered yet")
        sinks = [one for one in watch.sinks() if one.sink == self.sink and one.generation == record.generation]
        built = sinks[-1] if sinks else None
        published = self._published(watch, record)
        goal = HistoryPosition(1 << 62, 0)  # the job says when it is done
        now = sink_progress(self.sink, built, published, goal, self.rate, time.monotonic())
        status = "running" if record.is_open else record.status
        return replace(now, status=status, message=record.message)

    def _published(self, watch: SnapshotWatch, record: RebuildRecord) -> ProgressRecord | None:
        """Returns what capture has published of the tables that are built."""
        published, tables = watch.published(), record.table_ids
        if published is None or tables is None:
            return published
        topics = Topics(self.config.topics.prefix)
        ends = {topic: published.end_offsets.get(topic, ()) for topic in map(topics.table, tables)}
        return published.model_copy(update={"end_offsets": ends})

    def _end(self, record: RebuildRecord) -> None:
        self.screen.close()
        if self.as_json:
            state = {"what": "rebuild", **record.model_dump(mode="json", exclude={"asked_us", "keeps_old"})}
            typer.echo(json.dumps(state))
        elif record.status == "done":
            self.screen.say(f"{self.sink}: {record.message}")
        if record.status == "cancelled":
            raise SinkError(f"{self.sink}: the {record.action} was cancelled", "readers keep what they had")
        if record.status == "failed":
            raise SinkError(record.message, record.next)

    def _runs_here(self) -> bool:
        return Checkpoints(self.config.spark.checkpoint_location, self.config.topics.prefix, self.sink).is_locked()

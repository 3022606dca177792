"""`cdc snapshot`: sends signals to capture that read existing rows again during streaming, and fills new stores."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer
from rich.console import Console

from cdc.config.config_file import Config
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from watershed.cli.interrupts import interrupted, sigterm_as_interrupt
from watershed.cli.options import CONFIG, ConfigFile, Timeout, Wait, configuration, table_id
from watershed.cli.snapshot_screen import ProgressScreen, screen_for, status_table
from watershed.cli.store_filling import FillWatch, SinkProcess, Store, generation_to_watch, read_store, tables_to_read
from watershed.client.signal_sender import await_answer, send_signal
from watershed.status.fill_progress import FillProgress
from watershed.status.snapshot_watch import Followed, SnapshotWatch, await_begun, await_healed, epoch_of

Action = Literal["snapshot", "pause", "resume", "cancel", "heal"]

ANSWER_S_MAX: Final = 20.0
HEAL_ANSWER_S_MAX: Final = 120.0  # a slot is created first, which waits for open transactions
LOOK_S: Final = 0.25
GOES_ON: Final = "the snapshot continues; `cdc snapshot status` shows its progress"


app = typer.Typer(no_args_is_help=True)

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="SCHEMA.TABLE", help="Repeatable; all captured tables by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@app.command()
def start(
    table: Tables = None,
    where: Annotated[str | None, typer.Option(help="Only rows for which this SQL condition is true.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only rows above this key. A key of several columns is a JSON list."),
    ] = None,
    up_to: Annotated[str | None, typer.Option(metavar="KEY", help="Only rows up to and including this key.")] = None,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Fill the store of this sink, which must not exist yet.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --sink: also read the source's rows, not only the topics.")
    ] = False,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="With --sink: go on running the filled sink until SIGTERM.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Read existing rows again. Rows that no longer exist are removed from every store. Exits with 0 when all rows are
    published, 1 when the snapshot of a table failed or was cancelled. Ctrl-C leaves the snapshot running."""
    is_part = not (where is None and after is None and up_to is None)
    _refuse(is_part and bool(sink), "--where, --after and --up-to can't be combined with --sink")
    _refuse(is_part and len(table or ()) != 1, "--where, --after and --up-to require exactly one --table")
    _refuse((fresh or keep_running) and not sink, "--fresh and --keep-running require --sink")
    _refuse(bool(sink and table and not fresh), "with --sink, --table requires --fresh")
    _refuse(bool(sink) and not wait, "--sink always waits: it can't be combined with --no-wait")
    command = _command(config, as_json=as_json, timeout=timeout)
    if sink:
        command.fill(list(dict.fromkeys(sink)), table or (), is_fresh=fresh, keep_running=keep_running)
        return
    record = _signal("snapshot", table)
    part = {"where": where, "after": _key(after), "up_to": _key(up_to)}
    command.send(record.model_copy(update=part), waits=wait)


@app.command()
def status(as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Show the last snapshot of each table: rows, rate and time left."""
    _command(config, as_json=as_json).status()


@app.command()
def pause(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Pause running snapshots."""
    _command(config, as_json=as_json, timeout=timeout).send(_signal("pause", table), waits=False)


@app.command()
def resume(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Resume snapshots that are paused or have failed."""
    _command(config, as_json=as_json, timeout=timeout).send(_signal("resume", table), waits=False)


@app.command()
def cancel(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Cancel running and paused snapshots."""
    _command(config, as_json=as_json, timeout=timeout).send(_signal("cancel", table), waits=False)


@app.command()
def heal(
    epoch: Annotated[
        int | None, typer.Option(help="The new epoch, if the last one can't be read from the topics.", min=1)
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all", help="Publish every row again, not only those that differ from the topics.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Leave state GAP: begin a new epoch, compare all rows with the topics, and publish those that differ."""
    record = _signal("heal", None).model_copy(update={"epoch": epoch, "all_rows": all_rows})
    _command(config, as_json=as_json, timeout=timeout, answer_s_max=HEAL_ANSWER_S_MAX).send(record, waits=wait)


def _signal(action: Action, tables: Sequence[str] | None) -> SignalRecord:
    names = tuple(str(table_id(name)) for name in dict.fromkeys(tables or ()))
    return SignalRecord(action=action, tables=names, requested_us=time.time_ns() // 1000)


def _command(
    config: Path, *, as_json: bool, timeout: float | None = None, answer_s_max: float = ANSWER_S_MAX
) -> "_SnapshotCommand":
    ends = None if timeout is None else time.monotonic() + timeout
    return _SnapshotCommand(configuration(config), config, Console(), as_json, timeout or answer_s_max, ends)


@dataclass(frozen=True, slots=True)
class _SnapshotCommand:
    """One call of the command."""

    config: Config
    config_file: Path
    console: Console
    as_json: bool
    answer_s_max: float  # for capture's answer
    ends: float | None  # monotonic: when the command gives up waiting

    def status(self) -> None:
        with closing(SnapshotWatch.of(self.config)) as watch:
            watch.read_to_end()
            progress = [watch.progress_of(record) for record in watch.snapshots().values()]
        if self.as_json:
            typer.echo(json.dumps({"tables": [entry.as_json() for entry in progress]}))
        elif progress:
            self.console.print(status_table(progress), soft_wrap=True)
        else:
            typer.echo(f"no table of prefix {self.config.topics.prefix} has had a snapshot yet")

    # ---- signals

    def send(self, record: SignalRecord, *, waits: bool) -> None:
        """Sends a signal, and follows the snapshots that it starts. Raises WatershedError if one fails."""
        with ExitStack() as stack:
            watch = stack.enter_context(closing(SnapshotWatch.of(self.config)))
            watch.read_to_end()
            epoch_before = epoch_of(watch)
            identity, answer = self._signal(record)
            if not waits or record.action not in ("snapshot", "heal"):
                return
            if record.action == "heal":
                requests = await_healed(watch, epoch_before)
            else:
                requests = await_begun(watch, identity, map(table_id, answer.tables))
            screen = stack.enter_context(closing(screen_for(self.console, as_json=self.as_json)))
            followed = Followed(watch, requests)
            with interrupted(screen, GOES_ON):
                output = self._follow(watch, screen, followed.statuses, lambda now: all(one.is_ended for one in now))
            screen.close()
            _require_done(output)
            if record.action == "heal":
                _require_captured(watch)

    def _signal(self, record: SignalRecord) -> tuple[str, SignalAnswer]:
        """Sends a signal. Returns its id and the answer. Raises WatershedError if capture refuses it."""
        topics = Topics(self.config.topics.prefix)
        identity = send_signal(self.config.kafka, topics, record)
        answer = await_answer(self.config.kafka, topics, identity, self.answer_s_max)
        if self.as_json:
            output = {"what": "answer", "signal": identity, **answer.model_dump(mode="json")}
            typer.echo(json.dumps(output))
        if not answer.is_accepted:
            raise WatershedError(
                f"refused: {answer.message}", answer.next or "`cdc snapshot status` shows all snapshots"
            )
        if not self.as_json:
            typer.echo(f"{answer.message}: {', '.join(answer.tables)}" if answer.tables else answer.message)
        return identity, answer

    def _follow(
        self,
        watch: SnapshotWatch,
        screen: ProgressScreen,
        progress: Callable[[], list[FillProgress]],
        is_over: Callable[[Sequence[FillProgress]], bool],
        check: Callable[[], None] = lambda: None,
    ) -> list[FillProgress]:
        while True:
            now = progress()
            screen.show(now)
            if is_over(now):
                return now
            check()
            if self.ends is not None and time.monotonic() > self.ends:
                raise WatershedError(
                    "not done within --timeout",
                    "nothing to do: it continues, and `cdc snapshot status` shows its progress",
                )
            watch.poll(LOOK_S)

    # ---- stores

    def fill(self, sinks: Sequence[str], fresh: Sequence[str], *, is_fresh: bool, keep_running: bool) -> None:
        """Fills new stores from the topics and, where rows are missing from them, from the source."""
        with ExitStack() as stack:
            watch = stack.enter_context(closing(SnapshotWatch.of(self.config)))
            watch.read_to_end()
            stores = [read_store(self.config, name) for name in sinks]
            published = watch.sinks()
            generations = {store.sink: generation_to_watch(store, published, is_fresh=is_fresh) for store in stores}
            screen = stack.enter_context(closing(screen_for(self.console, as_json=self.as_json)))
            stack.enter_context(interrupted(screen, "stopped; the same command continues from here"))
            stack.enter_context(sigterm_as_interrupt())
            check = self._start(stack, screen, stores)
            requests = self._read_rows(watch, [table_id(name) for name in fresh] if fresh else None, is_fresh=is_fresh)
            filling = FillWatch(watch, generations, requests, time.monotonic)
            _require_done(self._follow(watch, screen, filling.progress, filling.is_over, check))
            screen.close()
            screen.say(f"filled: {', '.join(sinks)}")
            if keep_running:
                self._keep_running(screen, check)

    def _start(self, stack: ExitStack, screen: ProgressScreen, stores: Sequence[Store]) -> Callable[[], None]:
        """Starts the job of the sinks that no job runs. Returns a function that raises if this job has ended."""
        idle = [store.sink for store in stores if not store.is_running]
        if not idle:
            return lambda: None
        process = stack.enter_context(SinkProcess(self.config, self.config_file, idle))
        screen.say(f"the job of {', '.join(idle)} starts; its log is {process.log}")
        return process.check

    def _read_rows(
        self, watch: SnapshotWatch, fresh: Sequence[TableId] | None, *, is_fresh: bool
    ) -> Mapping[TableId, str]:
        """Requests the rows that are wanted or missing. Returns the request's id for each table."""
        captured = self.config.source.stored_table_ids
        read = fresh if fresh is not None else captured if is_fresh else ()
        wanted, requests = tables_to_read(watch, dict.fromkeys([*captured, *read]), read)
        if wanted:
            names = tuple(str(table) for table in wanted)
            record = SignalRecord(action="snapshot", tables=names, requested_us=time.time_ns() // 1000)
            identity, answer = self._signal(record)
            requests |= await_begun(watch, identity, map(table_id, answer.tables))
        return requests

    def _keep_running(self, screen: ProgressScreen, check: Callable[[], None]) -> None:
        screen.say("its job keeps running until SIGTERM or Ctrl-C")
        try:
            while True:
                time.sleep(LOOK_S)
                check()
        except KeyboardInterrupt:
            screen.say("stopping")


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


# ---- words


def _refuse(is_wrong: bool, why: str) -> None:
    if is_wrong:
        raise typer.BadParameter(why)


def _key(text: str | None) -> tuple[str, ...] | None:
    """Returns the key's columns as texts: the text itself, or the elements of a JSON list."""
    if text is None or not text.startswith("["):
        return None if text is None else (text,)
    try:
        values = json.loads(text)
    except ValueError:
        _not_a_key(text)
    if not values or not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        _not_a_key(text)
    return tuple(str(value) for value in values)


def _not_a_key(text: str) -> NoReturn:
    raise typer.BadParameter(f"{text!r} is not a JSON list with the values of the key's columns")

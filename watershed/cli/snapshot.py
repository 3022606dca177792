"""`cdc snapshot`: sends signals to capture that read existing rows again during streaming, and fills new stores."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer
from rich.console import Console

from cdc.model.control import SignalAnswer, SignalRecord
from watershed.cli.options import CONFIG, ConfigFile, Timeout, Wait, configuration, table_id
from watershed.cli.snapshot_run import SnapshotRun
from watershed.cli.snapshot_screen import screen_for, status_table
from watershed.status.listing import wide_console
from watershed.status.snapshot_watch import SnapshotWatch

Action = Literal["snapshot", "pause", "resume", "cancel", "heal"]

ANSWER_S_MAX: Final = 20.0
HEAL_ANSWER_S_MAX: Final = 120.0  # a slot is created first, which waits for open transactions

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
    run = _run(config, as_json=as_json, timeout=timeout)
    if sink:
        run.fill(
            list(dict.fromkeys(sink)),
            [table_id(name) for name in table or ()],
            is_fresh=fresh,
            keep_running=keep_running,
        )
        return
    record = _signal("snapshot", table)
    part = {"where": where, "after": _key(after), "up_to": _key(up_to)}
    run.send(record.model_copy(update=part), waits=wait)


@app.command()
def status(as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Show the last snapshot of each table: rows, rate and time left."""
    settings = configuration(config)
    with closing(SnapshotWatch.of(settings)) as watch:
        watch.read_to_end()
        progress = [watch.progress_of(record) for record in watch.snapshots().values()]
    if as_json:
        typer.echo(json.dumps({"tables": [entry.as_json() for entry in progress]}))
    elif progress:
        wide_console().print(status_table(progress))
    else:
        typer.echo(f"no table of prefix {settings.topics.prefix} has had a snapshot yet")


@app.command()
def pause(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Pause running snapshots."""
    _run(config, as_json=as_json, timeout=timeout).send(_signal("pause", table), waits=False)


@app.command()
def resume(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Resume snapshots that are paused or have failed."""
    _run(config, as_json=as_json, timeout=timeout).send(_signal("resume", table), waits=False)


@app.command()
def cancel(table: Tables = None, timeout: Timeout = None, as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """Cancel running and paused snapshots."""
    _run(config, as_json=as_json, timeout=timeout).send(_signal("cancel", table), waits=False)


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
    _run(config, as_json=as_json, timeout=timeout, answer_s_max=HEAL_ANSWER_S_MAX).send(record, waits=wait)


def _signal(action: Action, tables: Sequence[str] | None) -> SignalRecord:
    names = tuple(str(table_id(name)) for name in dict.fromkeys(tables or ()))
    return SignalRecord(action=action, tables=names, requested_us=time.time_ns() // 1000)


def _run(file: Path, *, as_json: bool, timeout: float | None = None, answer_s_max: float = ANSWER_S_MAX) -> SnapshotRun:
    def show(identity: str, answer: SignalAnswer) -> None:
        if as_json:
            typer.echo(json.dumps({"what": "answer", "signal": identity, **answer.model_dump(mode="json")}))
        elif answer.is_accepted:
            typer.echo(f"{answer.message}: {', '.join(answer.tables)}" if answer.tables else answer.message)

    ends = None if timeout is None else time.monotonic() + timeout
    screen = screen_for(Console(), as_json=as_json)
    return SnapshotRun(configuration(file), file, screen, show, timeout or answer_s_max, ends)


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

"""`cdc verify` and `cdc repair`: compare the source with stores, row by row, while both are being written."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from cdc.config.config_file import Config
from cdc.kafka.state_reader import read_in_force
from cdc.model.comparisons import RunRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from watershed.cli.exit_codes import DRIFT, PARTIAL
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.cli.snapshot_screen import ProgressScreen, screen_for
from watershed.status.fill_progress import FillProgress
from watershed.status.listing import Listing, wide_console
from watershed.verify.history import run_of, with_run
from watershed.verify.model import TableResult
from watershed.verify.pipeline_reader import PipelineReader
from watershed.verify.repairing import Repair
from watershed.verify.schedule import read_history
from watershed.verify.verifier import Selection, Verifier

TIMEOUT_S: Final = 120.0
SHOWN_MAX: Final = 100  # differences of one table and sink in a terminal

Sinks = Annotated[list[str] | None, typer.Option("--sink", metavar="NAME", help="Repeatable; all sinks by default.")]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="GLOB", help="schema.table, or a pattern such as 'public.*'. Repeatable."),
]
Timeout = Annotated[float, typer.Option("--sink-timeout", help="Seconds to wait for a sink without progress.", min=1)]
Share = Annotated[
    float, typer.Option("--source-share", help="Share of the time in which the source is read.", min=0.01, max=1.0)
]

# Of the HTTP server, which starts these commands: a JSON object for each step, on standard error.
Progress = Annotated[bool, typer.Option("--progress", hidden=True)]


def verify(
    sink: Sinks = None,
    table: Tables = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Compare only N rows of each side, chosen at random.", min=1)
    ] = None,
    source_share: Share = 0.5,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
    is_scheduled: Annotated[bool, typer.Option("--scheduled", hidden=True)] = False,
    with_progress: Progress = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Compare stores with the source while both are being written. Exits with 5 if a store differs, 6 if a table or a
    row could not be compared."""
    is_strict = bool(sink) and not is_scheduled
    selection = Selection(tuple(sink or ()), tuple(table or ("*",)), sample, source_share, is_strict)
    _run(config, selection, timeout, as_json=as_json, is_scheduled=is_scheduled, with_progress=with_progress)


def repair(
    sink: Sinks = None,
    table: Tables = None,
    source_share: Share = 0.5,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
    with_progress: Progress = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Compare stores with the source, have capture publish rows that differ again, and wait until the stores show them.
    Rows whose version capture never published are first removed from the stores. Exits with 5 if a store still differs,
    6 if a table or a row could not be compared."""
    selection = Selection(tuple(sink or ()), tuple(table or ("*",)), None, source_share, bool(sink))
    _run(config, selection, timeout, as_json=as_json, repairs=True, with_progress=with_progress)


def _run(
    path: Path,
    selection: Selection,
    timeout: float,
    *,
    as_json: bool,
    repairs: bool = False,
    is_scheduled: bool = False,
    with_progress: bool = False,
) -> None:
    config = read_in_force(configuration(path, log_level="error"))
    began_us, began = time.time_ns() // 1000, time.monotonic()
    screen = screen_for(Console(stderr=True), as_json=False) if not as_json else None
    report_progress = _ProgressLines() if with_progress else _ProgressPrinter(screen)
    with (
        closing(report_progress),
        closing(_Removal(config)) as removal,
        PipelineReader(config, timeout) as pipeline,
        Verifier(config, selection, pipeline, report_progress, removal) as verifier,
    ):
        results = list(verifier.run(Repair(config, pipeline, report_progress) if repairs else None))
        run = RunRecord(
            begun_us=began_us,
            seconds=round(time.monotonic() - began, 3),
            is_scheduled=is_scheduled,
            is_repair=repairs,
            is_sample=selection.sample is not None,
        )
        _record(config, pipeline, run, results)
    if as_json:
        typer.echo(json.dumps(_as_json(results)))
    else:
        _print(results, repairs=repairs)
    if any(result.drift for result in results):
        raise typer.Exit(DRIFT)
    if any(result.why_not or result.undecided for result in results):
        raise typer.Exit(PARTIAL)


def _record(config: Config, pipeline: PipelineReader, run: RunRecord, results: Sequence[TableResult]) -> None:
    """Adds the run to the history of each sink. Without the right to write to its topic, only prints a warning."""
    from spark_jobs.progress_writer import ProgressWriter

    writer = ProgressWriter(config.kafka, Topics(config.topics.prefix))
    try:
        for sink in dict.fromkeys(result.sink for result in results):
            own = [result for result in results if result.sink == sink]
            applied = pipeline.record(sink)
            found = run_of(run.model_copy(update={"applied_lsn": applied.applied_lsn if applied else 0}), own)
            writer.send(with_run(read_history(config, sink), sink, found, own))
    except WatershedError as error:
        typer.echo(f"this comparison is missing from the history in cdc status: {error.message}", err=True)
    finally:
        writer.close()


class _Removal:
    """Implements sinks.contents.Removal. Spark is imported and started by the first call."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._made: Any = None

    def __call__(self, *arguments: Any) -> None:
        if self._made is None:
            from spark_jobs.warehouse_commands import SparkRemoval

            self._made = SparkRemoval(self._config)
        self._made(*arguments)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class _ProgressLines:
    """Writes progress for the process that has started this one."""

    def __call__(self, sink: str, table: TableId, what: str, done: int, total: int) -> None:
        step = {"sink": sink, "table": str(table), "step": what, "done": done, "total": max(done, total)}
        typer.echo(json.dumps(step), err=True)

    def close(self) -> None:
        """Does nothing."""


class _ProgressPrinter:
    """Shows the progress of each table: a bar in a terminal, a line every few seconds elsewhere."""

    def __init__(self, screen: ProgressScreen | None) -> None:
        self._screen = screen
        self._progress: dict[str, FillProgress] = {}

    def __call__(self, sink: str, table: TableId, what: str, done: int, total: int) -> None:
        if self._screen is None:
            return
        name = f"{table} in {sink}" if sink else str(table)
        status = "done" if what == "done" else "running"
        self._progress[name] = FillProgress(
            "table", name, status, done, max(done, total), 0.0, "" if what == "done" else what
        )
        self._screen.show(list(self._progress.values()))

    def close(self) -> None:
        if self._screen is not None:
            self._screen.close()


def _as_json(results: Sequence[TableResult]) -> dict[str, Any]:
    return {
        "drift": sum(result.drift for result in results),
        "undecided": sum(result.undecided for result in results),
        "repaired": sum(result.repaired for result in results),
        "tables": [result.as_json() for result in results],
    }


def _print(results: Sequence[TableResult], *, repairs: bool) -> None:
    shown = Listing("sink", "table", "source", "store", "differ", *(["repaired"] if repairs else []), texts=[""])
    for result in results:
        rows = [f"{result.source_rows:,}", f"{result.store_rows:,}", f"{result.drift:,}"]
        if repairs:
            rows.append(f"{result.repaired:,}")
        shown.add_row(result.sink, str(result.table), *rows, result.remark)
    wide_console().print(shown)
    for result in results:
        for line in result.lines(SHOWN_MAX):
            typer.echo(line)
        if result.drift > SHOWN_MAX:
            typer.echo(f"{result.sink}: {result.table}: {result.drift - SHOWN_MAX:,} more; --json lists them")

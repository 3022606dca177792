"""`cdc dlq`: lists and handles dead letters, the rows that the stores of sinks rejected. A condition of SQL selects
rows by their keys, so that capture publishes them again."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from cdc.kafka.state_reader import read_captured
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from watershed.cli.options import CONFIG, ConfigFile, configuration, table_id
from watershed.client.signal_sender import await_answer, send_signal
from watershed.status.dead_letters import DeadLetter, discard_dead_letters, read_dead_letters
from watershed.status.listing import Listing, wide_console
from watershed.status.snapshot_watch import SnapshotWatch

ANSWER_S_MAX: Final = 20.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name in the configuration.")]
TableOption = Annotated[str | None, typer.Option("--table", metavar="SCHEMA.TABLE", help="Only rows of this table.")]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Only the row with this key. A key of several columns is a JSON list. Repeatable."),
]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_dead_letters(
    sinks: Annotated[list[str] | None, typer.Argument(metavar="SINK...", help="Sinks to list; all by default.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """List the rows that a store rejected and has not replaced by a later version since."""
    loaded = _loaded(config, sinks or ())
    dead_letters = read_dead_letters(loaded, sinks or loaded.sinks)
    if as_json:
        typer.echo(json.dumps({"dead_letters": [_as_json(dead_letter) for dead_letter in dead_letters]}))
        return
    shown = Listing("sink", "generation", "table", "key", "version", texts=["reason"])
    for dead_letter in dead_letters:
        row = dead_letter.row
        generation = "" if dead_letter.generation is None else str(dead_letter.generation)
        shown.add_row(dead_letter.sink, generation, str(row.table), _key_text(row.key), row.version, row.reason)
    wide_console().print(shown if dead_letters else "no sink has dead letters")


@app.command()
def show(sink: Sink, table: TableOption = None, key: KeyOption = None, config: ConfigFile = CONFIG) -> None:
    """Print everything that is known about rejected rows, one JSON object per line."""
    for dead_letter in _chosen(_loaded(config, [sink]), sink, table, key):
        typer.echo(json.dumps(_as_json(dead_letter)))


@app.command()
def replay(
    sink: Sink, table: TableOption = None, key: KeyOption = None, as_json: AsJson = False, config: ConfigFile = CONFIG
) -> None:
    """Publish the rows again, as they are in the source now. A dead letter ends when the store accepts its row."""
    loaded = _loaded(config, [sink])
    dead_letters = _chosen(loaded, sink, table, key)
    schemas = read_captured(loaded).schemas
    asked: dict[str, int] = {}
    for wanted in sorted({dead_letter.row.table for dead_letter in dead_letters}):
        # Two generations of the store may have rejected the same row.
        rows = list(
            {
                _key_text(dead_letter.row.key): dead_letter.row.key
                for dead_letter in dead_letters
                if dead_letter.row.table == wanted
            }.values()
        )
        _require_no_snapshot(loaded, wanted)
        if wanted not in schemas:
            raise WatershedError(
                f"table {wanted} is not published",
                "add it to source.tables again, or correct topics.prefix; if it is gone for good: "
                f"cdc dlq discard {sink} --table {wanted}",
            )
        answer = _publish_again(loaded, wanted, keys_condition(schemas[wanted], rows))
        if not answer.is_accepted:
            raise WatershedError(
                f"refused: {answer.message}", answer.next or "see with cdc table list whether the table is captured"
            )
        asked[str(wanted)] = len(rows)
        if not as_json:
            typer.echo(f"capture publishes {len(rows)} rows of {wanted} again")
    if as_json:
        typer.echo(json.dumps({"sink": sink, "replayed": asked}))
    elif not asked:
        typer.echo(f"sink {sink} has no such dead letters")


@app.command()
def discard(
    sink: Sink,
    table: TableOption = None,
    key: KeyOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the sink.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Delete dead letters without publishing their rows. The store keeps its older version of a row, or none."""
    if everything == (table is not None):
        raise typer.BadParameter("name the rows with --table and --key, or use --all")
    loaded = _loaded(config, [sink])
    dead_letters = _chosen(loaded, sink, table, key)
    discard_dead_letters(loaded, dead_letters)
    if as_json:
        typer.echo(json.dumps({"sink": sink, "discarded": len(dead_letters)}))
    else:
        typer.echo(f"{len(dead_letters)} dead letters of sink {sink} are discarded")


def _loaded(config: Path, sinks: Sequence[str]) -> Config:
    loaded = configuration(config)
    for sink in sinks:
        sink_config(loaded.sinks, sink)
    return loaded


def _chosen(config: Config, sink: str, table: str | None, keys: Sequence[str] | None) -> list[DeadLetter]:
    if keys and table is None:
        raise typer.BadParameter("--key requires --table")
    wanted = None if table is None else table_id(table)
    found = [
        dead_letter for dead_letter in read_dead_letters(config, [sink]) if wanted in (None, dead_letter.row.table)
    ]
    if not keys:
        return found
    chosen = [dead_letter for dead_letter in found if _key_text(dead_letter.row.key) in keys]
    missing = sorted(set(keys) - {_key_text(dead_letter.row.key) for dead_letter in chosen})
    if missing:
        raise WatershedError(
            f"sink {sink} has no dead letter of {table} with {len(missing)} of these keys", f"cdc dlq list {sink}"
        )
    return chosen


def _require_no_snapshot(config: Config, table: TableId) -> None:
    """Raises WatershedError while a snapshot of the table runs, because a request for some rows would replace it."""
    with closing(SnapshotWatch.of(config)) as watch:
        watch.read_to_end()
        record = watch.snapshots().get(table)
    if record is not None and record.status in ("running", "paused"):
        raise WatershedError(
            f"a snapshot of {table} is {record.status}: replaying some rows would replace it",
            "wait until it is done (cdc snapshot status); it may publish these rows, too",
        )


def _publish_again(config: Config, table: TableId, condition: str) -> SignalAnswer:
    topics = Topics(config.topics.prefix)
    record = SignalRecord(action="snapshot", tables=(str(table),), where=condition, requested_us=time.time_ns() // 1000)
    return await_answer(config.kafka, topics, send_signal(config.kafka, topics, record), ANSWER_S_MAX)


def _key_text(key: dict[str, Any]) -> str:
    """Returns the key in the form that --key takes: the text of one column, or a JSON list."""
    values = list(key.values())
    if len(values) == 1:
        return values[0] if isinstance(values[0], str) else json.dumps(values[0])
    return json.dumps(values, ensure_ascii=False)


def _as_json(dead_letter: DeadLetter) -> dict[str, Any]:
    where = {"sink": dead_letter.sink, "generation": dead_letter.generation, "table": str(dead_letter.row.table)}
    return where | dead_letter.row.model_dump(mode="json")


KEYS_MAX: Final = 5_000  # keys in one condition
_BYTEA: Final = 17


def keys_condition(schema: TableSchema, keys: Sequence[Mapping[str, Any]]) -> str:
    """Returns the condition. Raises WatershedError for too many keys, and for keys without a form as text."""
    hint = f"cdc snapshot start --table {schema.table} publishes all rows of the table again"
    if len(keys) > KEYS_MAX:
        raise WatershedError(f"{len(keys)} rows of {schema.table} are too many for one condition", hint)
    for column in schema.columns:
        if column.name in schema.key and (column.element_oid or (column.base_type_oid or column.type_oid) == _BYTEA):
            raise WatershedError(
                f"rows of {schema.table} can't be selected by key: key column {column.name} has type "
                f"{column.type_name}",
                hint,
            )
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.key)
    values = ", ".join("(" + ", ".join(_literal(key[name]) for name in schema.key) + ")" for key in keys)
    return f"({names}) IN ({values})"


def _literal(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

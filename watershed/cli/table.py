"""`cdc table`: lists tables and their states; shows one with all its names; stops and starts its capture."""

import json
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cdc.kafka.state_reader import read_state
from cdc.model.control import SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.topics import Topics
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration, table_id
from watershed.cli.tables import print_table
from watershed.client.signal_sender import await_answer, send_signal
from watershed.status.listing import Listing, wide_console
from watershed.verify.one_table import read_description

ANSWER_S_MAX: Final = 20.0

Names = Annotated[list[str], typer.Argument(metavar="SCHEMA.TABLE…", help="One or more tables.")]
Timeout = Annotated[float, typer.Option(help="Total seconds to wait.", min=0.1)]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_tables(as_json: AsJson = False, config: ConfigFile = CONFIG) -> None:
    """List the configured tables: captured or stopped, with the reason and the next step."""
    loaded = configuration(config)
    state = read_state(loaded)
    loaded, records = loaded.in_force(state.selection), state.tables
    rows = []
    for table in loaded.source.table_ids:
        record = records.get(table)
        status = "not captured yet" if record is None else record.status
        rows.append(
            {
                "table": str(table),
                "status": status,
                "message": record.message if record else "",
                "next": record.next if record else "",
                "starts_by_itself": record is not None and record.status == "stopped" and not record.is_held,
            }
        )
    if as_json:
        typer.echo(json.dumps({"tables": rows}))
        return
    shown = Listing("table", "status", texts=["why", "next"])
    for row in rows:
        shown.add_row(*(str(row[name]) for name in ("table", "status", "message", "next")))
    wide_console().print(shown)


@app.command("show")
def show_table(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table.")],
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Show a table: its state, topic, key and columns, and under which names each store has it, with the generation
    that readers see. Asks the brokers, and neither the source nor the stores."""
    described = read_description(configuration(config), table_id(table))
    if as_json:
        typer.echo(json.dumps(described))
    else:
        print_table(described)


@app.command("stop")
def stop_tables(
    tables: Names, timeout: Timeout = ANSWER_S_MAX, as_json: AsJson = False, config: ConfigFile = CONFIG
) -> None:
    """Stop publishing changes of these tables. Other tables continue."""
    _send("stop_table", tables, config, timeout, as_json=as_json)


@app.command("start")
def start_tables(
    tables: Names, timeout: Timeout = ANSWER_S_MAX, as_json: AsJson = False, config: ConfigFile = CONFIG
) -> None:
    """Capture stopped tables again. Streaming continues meanwhile, and all rows of these tables are read again."""
    _send("start_table", tables, config, timeout, as_json=as_json)


def _send(
    action: Literal["stop_table", "start_table"], tables: list[str], config: Path, timeout_s: float, *, as_json: bool
) -> None:
    names = tuple(str(table_id(name)) for name in dict.fromkeys(tables))
    loaded = configuration(config)
    topics = Topics(loaded.topics.prefix)
    record = SignalRecord(action=action, tables=names, requested_us=time.time_ns() // 1000)
    answer = await_answer(loaded.kafka, topics, send_signal(loaded.kafka, topics, record), timeout_s)
    if not answer.is_accepted:
        raise WatershedError(f"refused: {answer.message}", answer.next or "`cdc table list` shows the tables")
    if as_json:
        typer.echo(json.dumps({"answer": answer.message, "tables": list(answer.tables)}))
    else:
        typer.echo(f"{answer.message}: {', '.join(answer.tables)}")

"""`cdc reload`: capture and sinks read the configuration file again while they run."""

import json
import time
from typing import Annotated, Final

import typer

from cdc.config.config_file import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.state_reader import read_captured, records_of
from cdc.model.control import SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.topics import Topics
from sinks.schema_history import SchemaHistory
from spark_jobs.generations import reshaped_tables
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.client.signal_sender import await_answer, send_signal

ANSWER_S_MAX: Final = 20.0


def reload(
    timeout: Annotated[float, typer.Option(help="Total seconds to wait.", min=0.1)] = ANSWER_S_MAX,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Let capture and the running sinks read their configuration file again. With a mistake in it, the configuration in
    force stays, and the command says why. Says which tables sinks fill again because their mapping changed."""
    loaded = configuration(config)
    topics = Topics(loaded.topics.prefix)
    filled = _filled_again(loaded)
    record = SignalRecord(action="reload", requested_us=time.time_ns() // 1000)
    answer = await_answer(loaded.kafka, topics, send_signal(loaded.kafka, topics, record), timeout)
    if not answer.is_accepted:
        raise WatershedError(f"refused: {answer.message}", answer.next)
    if as_json:
        typer.echo(json.dumps({"answer": answer.message, "filled_again": filled}))
        return
    typer.echo(answer.message)
    for sink, tables in filled.items():
        typer.echo(f"sink {sink} fills {', '.join(tables)} again, whose mapping has changed")


def _filled_again(config: Config) -> dict[str, list[str]]:
    """Returns the tables of each sink that its store holds in another shape than the file's mapping gives them."""
    topic = Topics(config.topics.prefix).progress
    records = records_of(SinkRecord, topic, read_latest(config.kafka, topic))
    histories = [SchemaHistory.of([schema]) for schema in read_captured(config).schemas.values()]
    found = {}
    for name, section in config.sinks.items():
        held = [history for history in histories if section.holds(history.newest.table)]
        if tables := reshaped_tables(section, held, newest(records, name)):
            found[name] = list(map(str, tables))
    return found

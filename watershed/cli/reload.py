"""`cdc reload`: capture and sinks read the configuration file again while they run."""

import json
import time
from typing import Annotated, Final

import typer

from cdc.kafka.state_reader import read_captured
from cdc.model.control import SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.topics import Topics
from watershed.cli.findings.builds import build_plans
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.client.signal_sender import await_answer, send_signal

ANSWER_S_MAX: Final = 20.0


def reload(
    timeout: Annotated[float, typer.Option(help="Total seconds to wait.", min=0.1)] = ANSWER_S_MAX,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Let capture and the running sinks read their configuration file again. With a mistake in it, the configuration in
    force stays, and the command says why. Says which tables sinks build again because their configuration changed."""
    loaded = configuration(config)
    topics = Topics(loaded.topics.prefix)
    plans = build_plans(loaded, read_captured(loaded).schemas)
    record = SignalRecord(action="reload", requested_us=time.time_ns() // 1000)
    answer = await_answer(loaded.kafka, topics, send_signal(loaded.kafka, topics, record), timeout)
    if not answer.is_accepted:
        raise WatershedError(f"refused: {answer.message}", answer.next)
    if as_json:
        filled = {plan.sink: list(map(str, plan.tables)) for plan in plans}
        start = {plan.sink: plan.start_again for plan in plans if plan.functions}
        typer.echo(json.dumps({"answer": answer.message, "filled_again": filled, "start_again": start}))
        return
    typer.echo(answer.message)
    for plan in plans:
        typer.echo(f"sink {plan.sink} {plan}")

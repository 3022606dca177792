"""`cdc sink`: run sinks here or on a cluster, and show how far they are."""

import os
import sys
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from cdc.config.config_file import load_config
from cdc.config.stores import sink_config
from cdc.model.errors import WatershedError
from watershed.cli.options import CONFIG, AsJson, ConfigFile, HttpPort, LogJson, LogLevel, configuration
from watershed.status.model import Part

app = typer.Typer(no_args_is_help=True)


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="One or more sinks, as they are named in section sinks.")
    ],
    config: ConfigFile = CONFIG,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
    http_port: HttpPort = None,
) -> None:
    """Run sinks until SIGTERM, all in one Spark application.

    SIGHUP lets them read their sections of the configuration file again, as cdc reload does."""
    settings = configuration(config, log_level=log_level, log_json=log_json)
    sinks = list(dict.fromkeys(names))
    for name in sinks:
        sink_config(settings.sinks, name)  # raises ConfigError for an unknown name before anything listens
    from cdc.daemon.conditions import Conditions
    from cdc.telemetry.process import open_telemetry
    from spark_jobs.runner import run_sinks  # brings Spark

    conditions = Conditions()
    telemetry = open_telemetry(settings.telemetry, settings.topics.prefix, "watershed-sinks", has_lineage=True)
    port = settings.http.sink_port if http_port is None else http_port
    if port or telemetry.has_metrics:
        from watershed.cli.view_readers import view_readers
        from watershed.http.observed_process import show_process
        from watershed.http.routes import sinks_scope
        from watershed.http.server import ListenAddress

        address = ListenAddress(config, port, "http.sink_port") if port else None
        scope = sinks_scope(frozenset(sinks))
        show_process(settings, address, scope, conditions, view_readers(settings), telemetry)
    if settings.verify.every is not None:
        from watershed.verify.schedule import VerifySchedule

        VerifySchedule(settings, config, sinks).start()
    run_sinks(settings, sinks, conditions, lambda: load_config(config), telemetry)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One sink; all by default.")] = None,
    config: ConfigFile = CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show the progress and the problems of each sink. Exits with 1 if a sink makes no progress."""
    from watershed.cli.status import sink_status
    from watershed.status.listing import wide_console
    from watershed.status.screen import problem_lines, sinks_table

    now = sink_status(name, config, as_json=as_json)
    scope: frozenset[Part] = frozenset({"brokers", "sink"})
    problems = now.errors(scope, None if name is None else frozenset({name}))
    if name is not None and not now.sinks and now.brokers.is_reachable:
        raise WatershedError(
            f"no sink {name!r} has published a position", f"start it: cdc sink run {name}; cdc status shows all sinks"
        )
    if not as_json:
        console = wide_console()
        if now.sinks:
            console.print(sinks_table(now))
        elif now.brokers.is_reachable:
            console.print("no sink has published a position yet")
        for line in problem_lines(now.model_copy(update={"problems": problems})):
            console.print(line)
    if problems:
        raise typer.Exit(1)


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME... [SPARK_OPTION...]", help="Sinks, then options of spark-submit.")
    ],
    master: Annotated[str, typer.Option(help="The cluster, for example spark://host:7077, yarn, k8s://https://host.")],
    config: ConfigFile = CONFIG,
) -> None:
    """Run sinks on a Spark cluster through spark-submit. This process is the driver, until SIGTERM.

    The first argument that begins with a dash, and all after it, go to spark-submit, for example --conf
    spark.cores.max=8."""
    settings = configuration(config)
    from spark_jobs.jar_sets import jar_sets
    from spark_jobs.jars.java import spark_java
    from spark_jobs.jars.resolver import resolve_sets
    from spark_jobs.submit import package_archive, submit_command

    sinks = list(takewhile(lambda word: not word.startswith("-"), names))
    options = names[len(sinks) :]
    jars = [jar for found in resolve_sets(jar_sets(settings)).values() for jar in found]
    archive = package_archive(Path(".watershed/submit").absolute())
    command = submit_command(master, config, sinks, jars, archive, options)
    environment = {**os.environ, "JAVA_HOME": str(spark_java()), "PYSPARK_PYTHON": sys.executable}
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is meant

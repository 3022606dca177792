"""`cdc sink run`."""

import os
import sys
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import typer

from cdc.config.settings import load_config
from cdc.daemon.logs import configure_logs

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sink() -> None:
    """Keep derived stores in step with the topics."""


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of sections below sinks, one or several.")
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")] = Path(
        "watershed.yml"
    ),
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.", envvar="CDC_LOG_JSON")] = False,
) -> None:
    """Run sinks until SIGTERM, all in one Spark application."""
    configure_logs(level=log_level, as_json=log_json)
    settings = load_config(config)
    from spark_jobs.runner import run_sinks  # brings Spark

    run_sinks(settings, list(dict.fromkeys(names)))


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME... [SPARK_OPTION...]", help="Sinks, then options for spark-submit.")
    ],
    master: Annotated[str, typer.Option(help="The cluster, for example spark://host:7077, yarn, k8s://https://host.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")] = Path(
        "watershed.yml"
    ),
) -> None:
    """Run sinks on a Spark cluster, by spark-submit; this process is the driver until SIGTERM.

    Words from the first that begins with a dash on are options of spark-submit, for example --conf spark.cores.max=8.
    """
    load_config(config)
    from jars.java import spark_java
    from jars.resolver import resolve_sets
    from spark_jobs.class_archive import JAR_SETS
    from spark_jobs.submit import package_archive, submit_command

    sinks = list(takewhile(lambda word: not word.startswith("-"), names))
    options = names[len(sinks) :]
    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    archive = package_archive(Path(".watershed/submit").absolute())
    command = submit_command(master, config, sinks, jars, archive, options)
    environment = {**os.environ, "JAVA_HOME": str(spark_java()), "PYSPARK_PYTHON": sys.executable}
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is meant

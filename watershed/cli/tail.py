"""`cdc tail`: follows the changes of a table, as they are in its topic."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from cdc.kafka.record_decoding import record_reader
from cdc.kafka.topic_reader import TopicReader
from cdc.model.topics import Topics
from watershed.cli.exit_codes import INTERRUPTED
from watershed.cli.options import CONFIG, ConfigFile, configuration
from watershed.cli.tables import published_table
from watershed.status.table_records import PublishedRecord, payload, record_key
from watershed.status.table_tail import TableTail, sweep_line

WAIT_S: Final = 0.5


def tail(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table.")],
    key: Annotated[
        str | None, typer.Option(help="Only changes of this key. A key of several columns is a JSON list.")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", help="First print so many of the last changes.", min=0)] = 0,
    follow: Annotated[bool, typer.Option(help="Print changes as they arrive, until Ctrl-C.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each record.")] = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Follow the changes of a table from its topic: time, operation, key, LSN and columns. Masked columns are masked,
    because the topic has nothing else. With REPLICA IDENTITY FULL an update shows what was changed. Reads the topic
    only, so capture need not be running."""
    settings = configuration(config)
    schema = published_table(settings, table)
    wanted = None if key is None else json.loads(record_key(schema, key))

    def is_wanted(record: PublishedRecord) -> bool:
        return wanted is None or payload(record.key) == wanted

    printed = _printer(as_json=as_json)
    with closing(TopicReader(settings.kafka)) as reader:
        topics = schema.topic, Topics(settings.topics.prefix).control
        followed = TableTail(reader, schema.table, topics, is_wanted, record_reader(settings.kafka).plain)
        printed(followed.begin(last))
        try:
            while follow:
                printed(followed.poll(WAIT_S))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _print_json(records: Iterable[PublishedRecord]) -> None:
    for record in records:
        typer.echo(json.dumps(record.as_json(), ensure_ascii=False))


def _printer(*, as_json: bool) -> Callable[[Iterable[PublishedRecord]], None]:
    if as_json:
        return _print_json
    console = Console(highlight=False)

    def lines(records: Iterable[PublishedRecord]) -> None:
        for record in records:
            if record.op == "tombstone":  # it follows a delete, which was printed
                continue
            text = Text(sweep_line(record) if record.op == "sweep" else record.line())
            if console.is_terminal:
                text.truncate(console.width, overflow="ellipsis")
            console.print(text, soft_wrap=True)

    return lines

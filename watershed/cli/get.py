"""`cdc get`: one key in the source, in its topic and in every store."""

import json
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from cdc.kafka.state_reader import read_in_force
from cdc.model.events import TableSchema, unpack_version
from cdc.model.lsn import Lsn, format_lsn
from watershed.cli.exit_codes import DRIFT, NOT_IN_TIME, PARTIAL
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.cli.tables import published_table
from watershed.status.listing import Listing, wide_console
from watershed.status.table_records import PublishedRecord, key_text, record_key
from watershed.verify.model import shown
from watershed.verify.one_key import STALLED_S, RowEverywhere, SourceSide, StoreRow, Verdict, read_row

_CODES: Final = {
    Verdict.DIFFERS: DRIFT,
    Verdict.BEHIND: NOT_IN_TIME,
    Verdict.UNDECIDED: PARTIAL,
    Verdict.NOT_COMPARED: PARTIAL,
}  # the first of these that is met counts


def get(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key. One of several columns is a JSON list.")],
    records: Annotated[
        int, typer.Option(help="Records of the key to show, the newest last. 0: don't read the topic.", min=0)
    ] = 1,
    timeout: Annotated[
        float, typer.Option("--sink-timeout", help="Seconds to wait for a sink without progress.", min=0.1)
    ] = STALLED_S,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Show one row side by side: in the source, in its topic and in every store, with versions, and a verdict for each
    store: equal, behind, differs, or excluded by the mapping's condition. A difference is one only if no change that is
    under way explains it. Masked columns are masked. The topic is read from its beginning. Exits with 5 if a store
    differs, 7 if one is behind, 6 if one could not be compared."""
    settings = read_in_force(configuration(config, log_level="error"))
    schema = published_table(settings, table)
    row = read_row(settings, schema, record_key(schema, key), records, timeout)
    if as_json:
        typer.echo(json.dumps(row.as_json(), ensure_ascii=False))
    else:
        _print(row)
    verdicts = {store.verdict for store in row.stores}
    for verdict, code in _CODES.items():
        if verdict in verdicts:
            raise typer.Exit(code)


def _print(row: RowEverywhere) -> None:
    console, schema, records = wide_console(), row.schema, row.records
    console.print(f"{schema.table} {key_text(row.key)}", markup=False, highlight=False)
    console.print(side_by_side(schema, row.source, records, row.stores))
    if records:
        swept = ", and a sweep has removed the row since" if row.is_swept(records[-1]) else ""
        typer.echo(f"topic {schema.topic}: partition {records[-1].partition}, offset {records[-1].offset}, "
                   f"{records[-1].as_json()['op']}{swept}")  # fmt: skip
        for record in records[:-1]:
            typer.echo(f"  before: {record.line()}")
    else:
        typer.echo(f"topic {schema.topic}: no record of this key was read")
    verdicts = Listing("store", "verdict", texts=["", "next"])
    for store in row.stores:
        verdicts.add_row(store.sink, store.verdict.value, store.why, store.next)
    if row.stores:
        console.print(verdicts)
    else:
        typer.echo("no sink holds the table")
    if row.not_held:
        typer.echo(f"without the table, by `tables` or `exclude_tables`: {', '.join(row.not_held)}")


def side_by_side(
    schema: TableSchema, source: SourceSide, records: Sequence[PublishedRecord], stores: Sequence[StoreRow]
) -> Listing:
    """Returns a line for each column of the table, and of a store that has more; and lines for versions and LSNs."""
    newest = records[-1] if records else None
    table = Listing("", "source", "topic", *(store.sink for store in stores))
    table.add_row(
        "version",
        "",
        _version(None if newest is None else newest.version),
        *(_version(store.version) for store in stores),
    )
    lsn = newest.commit_lsn if newest is not None else None
    table.add_row("LSN", "", _lsn(lsn), *(_lsn(store.applied_lsn) for store in stores))
    names = [column.name for column in schema.columns]
    for name in names:
        in_topic = "" if newest is None or newest.row is None or name not in newest.row else shown(newest.row[name])
        in_source = "absent" if source.row is None else shown(source.row[name])
        table.add_row(name, in_source, in_topic, *(_value(store, store.names.get(name)) for store in stores))
    for store in stores:  # constants, and columns that no column of the source became
        for extra in store.row or {}:
            if extra not in store.names.values():
                table.add_row(extra, "", "", *(_value(one, extra) if one is store else "" for one in stores))
    return table


def _value(store: StoreRow, name: str | None) -> str:
    if name is None:
        return ""
    if store.row is None:
        return "absent"
    return shown(store.row[name]) if name in store.row else "absent"


def _version(version: int | None) -> str:
    return "" if version is None else "{}.{}".format(*unpack_version(version))


def _lsn(lsn: int | None) -> str:
    return "" if lsn is None else format_lsn(Lsn(lsn))

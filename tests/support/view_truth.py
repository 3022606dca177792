"""Compares a view in its target with the result of its SQL, or of a plain fold, over the source, column by column."""

import json
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.config.views import FoldConfig, TopicTarget, target_prefix, view_topics
from cdc.model.events import TableSchema
from cdc.postgres.connection import pinned_options
from sinks.contract import StoredRow
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.reader import WarehouseReader
from tests.checker.records import read_topics
from tests.support.view_tables import Query
from watershed.verify.comparison import compare
from watershed.verify.model import TableResult
from watershed.views.comparison import query_rows, row_schema, stored_rows

_PINNED = pinned_options(search_path="public")
# Of equal numbers with different digits (1 and 1.0), `max` returns the one that the server reads first.
NUMBERS: Final = {"revenue_by_hour": "largest"}


def compare_view(config: Config, name: str, query: Query) -> TableResult:
    """Compares every row. Nothing is written to the source meanwhile."""
    schema = row_schema(config, name)
    if (fold := config.views[name].fold) is not None:
        query = _folded(config, query, fold)
    rows = _stored_rows(config, name, schema)
    with query_rows(config, schema.table, query.text, query.key) as source:
        return compare(name, source, (_as_number(row, NUMBERS[name]) for row in rows) if name in NUMBERS else rows)


def _as_number(stored: StoredRow, column: str) -> StoredRow:
    """The row with a value of this column that is compared without regard to its digits."""
    value = stored.row[column]
    return stored._replace(row={**stored.row, column: None if value is None else Decimal(str(value))})


def _folded(config: Config, query: Query, fold: FoldConfig) -> Query:
    """Returns a query for the rows that a plain fold of the source's events gives, with the types of the fold."""
    module, _, function = fold.function.partition(":")
    apply = getattr(import_module(module), function)
    states: dict[tuple[Any, ...], dict[str, Any] | None] = {}
    events = f"SELECT v.* FROM ({query.text}\n) v ORDER BY {', '.join(fold.order)}"
    with psycopg.connect(config.source.dsn.get_secret_value(), options=_PINNED, row_factory=dict_row) as connection:
        for event in connection.execute(events.encode()):
            key = tuple(event[name] for name in query.key)
            states[key] = apply(states.get(key), event)
    rows = [dict(zip(query.key, key, strict=True)) | state for key, state in states.items() if state is not None]
    columns = dict.fromkeys(query.key, "bigint") | dict(fold.columns)
    typed = ", ".join(f"{name} {type_name}" for name, type_name in columns.items())
    literal = sql.Literal(json.dumps(rows, default=str)).as_string()
    return Query(f"SELECT * FROM json_to_recordset({literal}) AS r({typed})", query.key)


def _stored_rows(config: Config, name: str, schema: TableSchema) -> Iterator[StoredRow]:
    target = config.views[name].target
    if isinstance(target, TopicTarget):
        return _topic_rows(config, name)
    if isinstance(target, WarehouseConfig):
        return WarehouseReader(catalog_place(target, target_prefix(config.topics.prefix, name))).rows(schema.table)
    return stored_rows(config, name, schema)


def _topic_rows(config: Config, name: str) -> Iterator[StoredRow]:
    """The content of a consumer that keeps the last record of each key. A key's version never goes back."""
    topic = view_topics(config.views, config.topics.prefix)[name]
    records, _ = read_topics(config.kafka.bootstrap_servers, [topic])
    rows: dict[bytes, StoredRow | None] = {}
    versions: dict[bytes, int] = {}
    for record in records:
        version = int(dict(record.headers)["version"])
        assert version >= versions.get(record.key, 0), f"{record}: version {version} after {versions[record.key]}"
        versions[record.key] = version
        value = None if record.value is None else json.loads(record.value)
        rows[record.key] = None if value is None else StoredRow(json.loads(record.key), value, version)
    yield from (row for row in rows.values() if row is not None)

"""Compares the rows of a view in its target with the result of its query over the source, which is not written
meanwhile: every row and column.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final

import psycopg
from psycopg import sql

from cdc.config.config_file import Config
from cdc.config.views import TopicTarget, target_prefix
from cdc.model.events import TableId, TableSchema
from cdc.postgres.connection import pinned_options
from sinks.contract import StoredRow
from sinks.registry import make_sink
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import TableResult
from watershed.views.maintainer import RowEncoder, define
from watershed.views.targets import open_base

_PINNED: Final = pinned_options(search_path="public")
_TYPES: Final = "SELECT oid, regexp_replace(typname, '^_(.*)$', '\\1[]') FROM pg_type WHERE oid = ANY(%s)"


def compare_view(config: Config, name: str, published: Iterable[StoredRow] = ()) -> TableResult:
    """Compares a view. `published`: its rows, if its target is a topic, which the caller has read to its end."""
    view, schema = config.views[name], row_schema(config, name)
    stored = published if isinstance(view.target, TopicTarget) else stored_rows(config, name, schema)
    with query_rows(config, schema.table, view.sql, view.key) as source:
        return compare("views", source, stored)


def row_schema(config: Config, name: str) -> TableSchema:
    """Returns the schema of the view's rows in its target."""
    with open_base(config, name) as base:
        definition = define(name, config.views[name], base)
        return RowEncoder(definition, base.described(definition)).schema


def query_rows(config: Config, table: TableId, query: str, key: Sequence[str]) -> SourceRows:
    """Returns the query's result over the source. Rows whose key has a null are not in a view."""
    text = sql.SQL("SELECT v.* FROM ({}\n) v WHERE {}").format(
        sql.SQL(query),
        sql.SQL(" AND ").join(sql.SQL("v.{} IS NOT NULL").format(sql.Identifier(column)) for column in key),
    )
    with psycopg.connect(config.source.dsn.get_secret_value(), autocommit=True, options=_PINNED) as connection:
        described = connection.execute(text + sql.SQL(" LIMIT 0")).description or []
        names: dict[int, str] = dict(connection.execute(_TYPES, ([one.type_code for one in described],)).fetchall())
        columns = {one.name: names[one.type_code] for one in described}
        with connection.cursor().copy(sql.SQL("COPY ({}) TO STDOUT").format(text)) as copy:
            return SourceRows(table, columns, key, copy.rows())


def stored_rows(config: Config, name: str, schema: TableSchema) -> Iterator[StoredRow]:
    """Yields the rows of a view whose target is a search index, a cache or a SQL table."""
    view = config.views[name]
    assert not isinstance(view.target, TopicTarget), "its rows are published"
    with closing(make_sink(name, view.target, target_prefix(config.topics.prefix, name))) as sink:
        sink.attach(schema)
        yield from sink.rows(schema.table)

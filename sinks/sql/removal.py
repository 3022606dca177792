"""The tables that a sink has made in an SQL database, and their removal."""

import json
from collections.abc import Collection
from contextlib import closing

from sqlalchemy import Connection, MetaData, Table, inspect
from sqlalchemy.schema import DropSchema, DropTable

from cdc.config.stores import SqlConfig
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.sql.server import LostTable, RefusedStatement, SqlServer
from sinks.sql.tables import OwnTables


def sql_contents(section: SqlConfig, prefix: str, tables: Collection[TableId], *, removes: bool) -> list[str]:
    """Returns the names of the sink's tables; with `removes`, they are dropped in one transaction, and with them the
    schema of the sink's own tables. Schemas of readers' tables stay. Raises SinkError."""
    del tables
    with closing(SqlServer(section.url.get_secret_value(), Retries())) as server:
        own = OwnTables(server.dialect, section.beginning(prefix))

        def work(connection: Connection) -> list[str]:
            known = inspect(connection)
            places = []
            if known.has_table(own.tables.name, own.schema):
                for row in connection.execute(own.tables.select().order_by(own.tables.c.source)).mappings():
                    schema, name = json.loads(row["shape"])["place"]
                    places += [(schema, name), (own.schema, own.versions_name(row["source"]))]
                places += [(own.schema, table.name) for table in (own.tables, own.sink, own.staged)]
            found = [(schema, name) for schema, name in places if known.has_table(name, schema)]
            if removes:
                for schema, name in found:
                    connection.execute(DropTable(Table(name, MetaData(), schema=schema)))
                if own.schema is not None and known.has_schema(own.schema):
                    known.clear_cache()
                    if not known.get_table_names(own.schema):
                        connection.execute(DropSchema(own.schema))
            return [".".join(filter(None, place)) for place in found]

        try:
            return server.transaction(work)
        except LostTable:
            raise SinkError("a table was dropped by another session meanwhile", "run the same command again") from None
        except RefusedStatement as error:
            raise SinkError(
                error.message, "drop what depends on the sink's tables, such as views, then run the same command again"
            ) from None

"""The generations of one SQL store. All tables of the one that readers see have the configuration's names; a swap
renames the tables of two generations, in one transaction.

Writers of either generation take their tables' fence, a row of a table that is renamed with them: the swap waits for
their transactions, and whoever comes later finds another table, or another shape, behind the fence.
"""

import json
import re
from collections.abc import Collection
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from sqlalchemy import Connection, MetaData, Table, inspect, text
from sqlalchemy.schema import DropTable

from cdc.config.store_shapes import SqlShape, shape_of
from cdc.config.stores import SqlConfig
from cdc.model.control import table_key
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.slots import FIRST, slot_of
from sinks.sql.server import LostTable, SqlServer
from sinks.sql.tables import OwnTables, QualifiedName, moved

DEPENDENTS_NAMED_MAX: Final = 5


class SqlSlots:
    """Implements sinks.slots.Slots."""

    in_place = False

    def __init__(self, config: SqlConfig, prefix: str, retries: Retries | None = None) -> None:
        self._server = SqlServer(config.url.get_secret_value(), retries or Retries())
        self._beginning = config.beginning(prefix)
        self._shapes = config.shapes

    def serving(self) -> str:
        return FIRST

    def others(self) -> dict[str, int | None]:
        dialect, own = self._server.dialect, self._own(FIRST)
        beginning = "" if dialect.has_schemas else f"{self._beginning}."
        pattern = re.compile(re.escape(beginning) + r"(g\d+)\.sink")
        names = self._server.transaction(lambda connection: inspect(connection).get_table_names(own.schema))
        slots = [found[1] for name in names if (found := pattern.fullmatch(name))]
        return {slot: self.generation(slot) for slot in sorted(slots)}

    def generation(self, slot: str) -> int | None:
        sink = self._own(slot).sink
        try:
            held = self._server.transaction(lambda connection: connection.execute(sink.select()).mappings().first())
        except LostTable:
            return None
        return None if held is None else int(held["generation"])

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        """Raises RefusedError if objects depend on the readers' tables and would stay with the former generation. The
        free space of a database can't be queried.
        """
        sources = None if tables is None else set(map(table_key, tables))
        self._server.transaction(partial(self._check_dependents, sources=sources))

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        """Its tables hold nothing but what the rebuild has met."""
        del slot, version, tables
        return 0

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        def swap(connection: Connection) -> None:
            for statement in self._server.dialect.swap_settings:
                connection.exec_driver_sql(statement)
            former, new = self._own(FIRST), self._own(slot)
            if not self._is_there(connection, (new.schema, new.sink.name)):
                return  # it serves already
            if adopts and self._is_there(connection, (former.schema, former.sink.name)):
                self._replace_tables(connection, new, former)
                return
            rights: dict[str, list[str]] = {}
            if self._is_there(connection, (former.schema, former.sink.name)):
                self._check_dependents(connection)
                held = connection.execute(former.sink.select()).mappings().one()
                rights = self._rights(connection, former)
                self._move(connection, former, self._own(slot_of(held["generation"])))
            self._move(connection, new, former)
            for row in self._rows(connection, former):
                for statement in rights.get(row["source"], ()):
                    connection.exec_driver_sql(statement)

        try:
            self._server.transaction(swap)
        except LostTable:
            raise SinkError(
                f"SQL store at {self._server.name}: a table of the new generation was dropped",
                "nothing to do: readers see the former generation, and the rebuild begins again",
            ) from None

    def drop(self, slot: str) -> None:
        assert slot != FIRST, "readers see it"
        own = self._own(slot)

        def drop(connection: Connection) -> None:
            if not self._is_there(connection, (own.schema, own.sink.name)):
                return
            for row in self._rows(connection, own):
                for place in (_place(row), (own.schema, own.versions_name(row["source"]))):
                    connection.execute(DropTable(_table(place), if_exists=True))
            for table in (own.tables, own.staged):
                connection.execute(DropTable(table, if_exists=True))
            connection.execute(DropTable(own.sink))

        self._server.transaction(drop)

    def close(self) -> None:
        self._server.close()

    def _move(self, connection: Connection, source: OwnTables, target: OwnTables) -> None:
        """Give the tables of one generation the names of another slot."""
        for row in self._rows(connection, source):
            held, name = _place(row), row["source"]
            place = target.place(held) if source.slot == FIRST else self._named(name)
            if source.slot != FIRST or self._is_there(connection, held):
                self._rename(connection, held, place[1])
            versions = source.schema, source.versions_name(name)
            if source.slot != FIRST or self._is_there(connection, versions):
                self._rename(connection, versions, target.versions_name(name))
            changed = source.tables.update().where(source.tables.c.source == name)
            connection.execute(changed.values(shape=moved(row["shape"], place)))
        connection.execute(DropTable(source.staged, if_exists=True))  # is made again for the next batch
        for one, other in ((source.tables, target.tables), (source.sink, target.sink)):
            self._rename(connection, (source.schema, one.name), other.name)

    def _replace_tables(self, connection: Connection, new: OwnTables, former: OwnTables) -> None:
        """Put the tables of the new generation in the place of the former one's; the others of that stay as they are,
        and belong to the new generation."""
        rows = self._rows(connection, new)
        sources = {row["source"] for row in rows}
        self._check_dependents(connection, sources)
        rights = self._rights(connection, former)
        held = {row["source"]: row for row in self._rows(connection, former) if row["source"] in sources}
        for name, row in held.items():
            for place in (_place(row), (former.schema, former.versions_name(name))):
                connection.execute(DropTable(_table(place), if_exists=True))
        connection.execute(former.tables.delete().where(former.tables.c.source.in_(sorted(sources))))
        for row in rows:
            place = self._named(row["source"])
            self._rename(connection, _place(row), place[1])
            self._rename(
                connection, (new.schema, new.versions_name(row["source"])), former.versions_name(row["source"])
            )
            connection.execute(former.tables.insert(), {**row, "shape": moved(row["shape"], place)})
            for statement in rights.get(row["source"], ()):
                connection.exec_driver_sql(statement)
        connection.execute(former.sink.delete())
        connection.execute(former.sink.insert(), dict(connection.execute(new.sink.select()).mappings().one()))
        for table in (new.tables, new.sink):
            connection.execute(DropTable(table))

    def _rename(self, connection: Connection, place: QualifiedName, name: str) -> None:
        preparer = connection.dialect.identifier_preparer
        connection.exec_driver_sql(
            f"ALTER TABLE {preparer.format_table(_table(place))} RENAME TO {preparer.quote(name)}"
        )

    def _check_dependents(self, connection: Connection, sources: Collection[str] | None = None) -> None:
        """`sources`: the tables that are replaced, as in `tables`; None: all."""
        own = self._own(FIRST)
        if not self._is_there(connection, (own.schema, own.tables.name)):
            return
        for row in self._rows(connection, own):
            if sources is not None and row["source"] not in sources:
                continue
            query = text(self._server.dialect.dependents)
            found = list(connection.execute(query, _parameters(row)).scalars())
            if found:
                more = f" and {len(found) - DEPENDENTS_NAMED_MAX} more" if len(found) > DEPENDENTS_NAMED_MAX else ""
                raise SinkError(
                    f"SQL table of {row['source']}: a rebuild would leave on the former generation what the sink did "
                    f"not create: {', '.join(found[:DEPENDENTS_NAMED_MAX])}{more}",
                    "set indexes in the sink's shapes, and then every generation has them; keep the definitions of the "
                    "others, drop them, rebuild, and create them again",
                )

    def _rights(self, connection: Connection, own: OwnTables) -> dict[str, list[str]]:
        """Returns, for each table, the statements that give another table of its name the rights that it has."""
        query = self._server.dialect.rights
        if query is None:
            return {}
        return {
            row["source"]: list(connection.execute(text(query), _parameters(row)).scalars())
            for row in self._rows(connection, own)
        }

    def _rows(self, connection: Connection, own: OwnTables) -> list[Any]:
        return list(connection.execute(own.tables.select().order_by(own.tables.c.source)).mappings())

    def _named(self, source: str) -> QualifiedName:
        """Returns schema and name under which readers find the table."""
        table = TableId(*map(unquote, source.split(".", 1)))
        return self._server.dialect.place(shape_of(self._shapes, table, SqlShape()).table, table)

    def _is_there(self, connection: Connection, place: QualifiedName) -> bool:
        schema, name = place
        return inspect(connection).has_table(name, schema)

    def _own(self, slot: str) -> OwnTables:
        return OwnTables(self._server.dialect, self._beginning, slot)


def _place(row: Any) -> QualifiedName:
    schema, name = json.loads(row["shape"])["place"]
    return schema, name


def _parameters(row: Any) -> dict[str, str | None]:
    schema, name = _place(row)
    return {"schema": schema, "name": name}


def _table(place: QualifiedName) -> Table:
    schema, name = place
    return Table(name, MetaData(), schema=schema)

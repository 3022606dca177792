"""The generations of one warehouse. Those that readers do not see have a namespace of their own; a swap gives the
tables of two generations each other's names, in one transaction of the catalog.

Only a JDBC catalog can do that: its tables are rows of a database. Others rename one table at a time, so that readers
would meet a moment without a table, or with tables of two generations.
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import unquote, urlsplit

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from cdc.model.control import table_key
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.slots import FIRST, slot_of
from sinks.warehouse import properties, statements
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.engine import Engine
from sinks.warehouse.statements import CATALOG

_NAMESPACES: Final = "iceberg_namespace_properties"
_TABLES: Final = "iceberg_tables"
# The namespace of a slot, and those below it.
_FORGET: Final = text(
    f"DELETE FROM {_NAMESPACES} WHERE catalog_name = :catalog "  # noqa: S608
    "AND (namespace = :own OR substr(namespace, 1, length(:below)) = :below)"
)
_NOTED: Final = "(property_key IN (:generation, :tables, :adopted) OR property_key LIKE 'watershed.note%')"
_KEYS: Final = {
    "generation": properties.GENERATION,
    "tables": properties.TABLES,
    "adopted": properties.ADOPTED,
}


def in_slot(catalog: CatalogPlace, slot: str) -> CatalogPlace:
    """Returns the place of a generation's tables."""
    return catalog if slot == FIRST else replace(catalog, namespace=f"{catalog.namespace}__{slot}")


class WarehouseSlots:
    """Implements sinks.slots.Slots."""

    in_place = False

    def __init__(self, engine: Engine, catalog: CatalogPlace) -> None:
        """`catalog`: of a JDBC catalog."""
        self._engine = engine
        self._catalog = catalog
        self._database = create_engine(catalog.python_properties["uri"], pool_size=1)

    def serving(self) -> str:
        return FIRST

    def others(self) -> dict[str, int | None]:
        pattern = re.compile(re.escape(self._catalog.namespace) + r"__(g\d+)(\..*)?")
        query = text(
            f"SELECT namespace FROM {_NAMESPACES} WHERE catalog_name = :catalog "  # noqa: S608
            f"UNION SELECT table_namespace FROM {_TABLES} WHERE catalog_name = :catalog"
        )
        with self._transaction() as connection:
            names = connection.execute(query, {"catalog": CATALOG}).scalars()
            slots = {found[1] for name in names if (found := pattern.fullmatch(name))}
        return {slot: self.generation(slot) for slot in sorted(slots)}

    def generation(self, slot: str) -> int | None:
        noted = self._engine.namespace_properties((self._namespace(slot),)) or {}
        marker = noted.get(properties.GENERATION, "")
        return int(marker) if marker.isdecimal() else None

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        """Raises RefusedError if the disk has no room for a second generation. Only folders of this machine are
        checked; object stores do not report their size.
        """
        location = urlsplit(self._catalog.location)
        if location.scheme != "file":
            return
        counted = [table for table in self._listed(FIRST) if tables is None or table in tables]
        sizes = [self._size(name) for table in counted for name in self._names(FIRST, table)]
        free = shutil.disk_usage(unquote(location.path)).free
        if sum(sizes) > free:
            raise SinkError(
                f"warehouse: a second generation needs about {sum(sizes):,} bytes, and {free:,} are left on the disk "
                f"of {unquote(location.path)}",
                "free space, then start the rebuild again; readers keep their present generation",
            )

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        """Its tables hold nothing but what the rebuild has met."""
        del slot, version, tables
        return 0

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        new, former = self.generation(slot), self.generation(FIRST)
        if new is None:
            return  # it serves already
        if adopts and former is not None:
            self._replace_tables(slot, former)
            return
        with self._transaction() as connection:
            if former is not None:
                self._move(connection, FIRST, slot_of(former))
            self._move(connection, slot, FIRST)
            connection.execute(_FORGET, self._parameters(slot))

    def drop(self, slot: str) -> None:
        assert slot != FIRST, "readers see it"
        tables = text(
            f"SELECT table_namespace, table_name FROM {_TABLES} WHERE catalog_name = :catalog "  # noqa: S608
            "AND substr(table_namespace, 1, length(:below)) = :below"
        )
        parameters = self._parameters(slot)
        with self._transaction() as connection:
            found = [tuple(row) for row in connection.execute(tables, parameters)]
        own = parameters["own"]
        for namespace, name in found:
            self._engine.run(statements.purge_table((own, namespace.removeprefix(f"{own}."), name)))
        with self._transaction() as connection:
            connection.execute(_FORGET, parameters)

    def close(self) -> None:
        self._database.dispose()

    def _move(self, connection: Connection, source: str, target: str) -> None:
        """Give the tables of one generation the names of another slot, and the namespaces what they hold."""
        self._move_tables(connection, self._listed(source), source, target)
        noted = text(
            f"UPDATE {_NAMESPACES} SET namespace = :to WHERE catalog_name = :catalog "  # noqa: S608
            f"AND namespace = :was AND {_NOTED}"
        )
        names = {"was": self._namespace(source), "to": self._namespace(target)}
        connection.execute(noted, {"catalog": CATALOG, **_KEYS, **names})

    def _move_tables(self, connection: Connection, tables: Collection[TableId], source: str, target: str) -> None:
        moved = text(
            f"UPDATE {_TABLES} SET table_namespace = :to WHERE catalog_name = :catalog "  # noqa: S608
            "AND table_namespace = :was AND table_name = :name"
        )
        for table in tables:
            for was, to in zip(self._names(source, table), self._names(target, table), strict=True):
                parameters = {"catalog": CATALOG, "was": ".".join(was[:-1]), "to": ".".join(to[:-1]), "name": was[-1]}
                connection.execute(moved, parameters)

    def _replace_tables(self, slot: str, former: int) -> None:
        """Put the tables of a slot in the place of the serving generation's, which get the names of a slot of their
        own; the others stay as they are, and belong to the new generation."""
        held, new = (self._engine.namespace_properties((self._namespace(one),)) or {} for one in (FIRST, slot))
        built, kept = self._listed(slot), [table for table in self._listed(FIRST) if table not in self._listed(slot)]
        found = [self._engine.table_properties(self._names(FIRST, table)[0]) or {} for table in kept]
        made_in = {int(one[properties.GENERATION]) for one in found if properties.GENERATION in one}
        changed = {
            properties.GENERATION: new[properties.GENERATION],
            properties.TABLES: json.dumps(sorted([*kept, *built])),
            properties.ADOPTED: json.dumps(sorted(made_in)),
        }
        if (note := properties.note_of(new)) is not None:
            for writes in properties.note_writes(_joined(properties.note_of(held), note, built), {}):
                changed |= writes
        own = self._namespace(FIRST)
        removed = text(
            f"DELETE FROM {_NAMESPACES} WHERE catalog_name = :catalog AND namespace = :own AND {_NOTED}"  # noqa: S608
        )
        noted = text(
            f"INSERT INTO {_NAMESPACES} (catalog_name, namespace, property_key, property_value) "  # noqa: S608
            "VALUES (:catalog, :own, :key, :value)"
        )
        with self._transaction() as connection:
            self._move_tables(connection, built, FIRST, slot_of(former))
            self._move_tables(connection, built, slot, FIRST)
            connection.execute(removed, {"catalog": CATALOG, "own": own, **_KEYS})
            for key, value in changed.items():
                connection.execute(noted, {"catalog": CATALOG, "own": own, "key": key, "value": value})
            connection.execute(_FORGET, self._parameters(slot))

    def _names(self, slot: str, table: TableId) -> tuple[tuple[str, ...], tuple[str, ...]]:
        where = in_slot(self._catalog, slot).place(table)
        return where.rows, where.deleted

    def _namespace(self, slot: str) -> str:
        return in_slot(self._catalog, slot).namespace

    def _parameters(self, slot: str) -> dict[str, str]:
        own = self._namespace(slot)
        return {"catalog": CATALOG, "own": own, "below": f"{own}."}

    def _listed(self, slot: str) -> list[TableId]:
        return properties.listed_tables(self._engine.namespace_properties((self._namespace(slot),)) or {})

    def _size(self, table: tuple[str, ...]) -> int:
        if self._engine.table_properties(table) is None:
            return 0
        newest = next(self._engine.history(table), None)
        return 0 if newest is None else int(newest.summary.get("total-files-size", 0))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._database.begin() as connection:
                yield connection
        except IntegrityError:
            raise SinkError(
                "warehouse: the catalog has a table under a name of the new generation that the sink did not create",
                "rename it; readers keep their present generation, and the sink tries again",
            ) from None
        except SQLAlchemyError as error:
            raise SinkError(
                f"warehouse: the catalog's database does not answer ({type(error).__name__})",
                "check that it can be reached and written; the sink tries again",
            ) from None


def _joined(former: properties.Note | None, new: properties.Note, built: Collection[TableId]) -> properties.Note:
    """Returns the new note, with the snapshots of the tables that were not built."""
    names = set(map(table_key, built))
    held = {} if former is None else {table: one for table, one in former.snapshots.items() if table not in names}
    return properties.Note(new.text, {**held, **new.snapshots})

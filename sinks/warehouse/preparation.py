"""A table's objects in the warehouse: made, or brought to a new version of the schema while rows and readers are there.

Columns and the note of what they are change in one commit of the catalog, so that whoever is killed or comes second
finds the one version or the other. The view follows; until then it may ask for a column that is gone.
"""

import json
import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from cdc.model.errors import RefusedError, SinkError
from cdc.model.events import TableId, TableSchema
from cdc.records.control import table_key
from sinks.lineage import Lineage
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.evolution import evolution
from sinks.warehouse.naming import DELETED, VERSION, Place

log = structlog.get_logger(__name__)

# Another writer's commits come in between; each attempt costs some milliseconds.
ATTEMPT_COUNT_MAX: Final = 20


class Preparation:
    """Of the tables below one namespace."""

    def __init__(self, engine: Engine, namespace: str, pause: Callable[[float], None]) -> None:
        self._engine = engine
        self._namespace = (namespace,)
        self._pause = pause

    def discard(self, table: TableId, where: Place) -> None:
        """Drop the table and its view, files included, if they are this table's."""
        found = self._engine.table_properties(where.rows)
        if found is None or found.get(properties.TABLE) != table_key(table):
            return
        self._engine.drop(where.live)
        self._engine.run(statements.purge_table(where.rows))

    def prepare(self, lineage: Lineage, where: Place, types: Mapping[str, str]) -> None:
        """`types`: Spark's types of the newest version's columns. See `sinks.contract.Sink.prepare`."""
        schema = lineage.newest
        noted = self._engine.namespace_properties(self._namespace) or {}
        marker, tables = noted.get(properties.GENERATION), properties.listed_tables(noted)
        found = self._engine.table_properties(where.rows)
        if marker is None or (schema.table in tables and (found is None or found.get(properties.GENERATION) != marker)):
            raise _lost(where)
        shape = {
            properties.TABLE: table_key(schema.table),
            properties.KEY: json.dumps(schema.key),
            properties.COLUMNS: json.dumps(list(types.items())),
            properties.SCHEMA_VERSION: str(schema.version),
            properties.GENERATION: marker,
        }
        if found is None:
            self._check_free(schema, where)
            self._create(where, types, shape)
        else:
            self._evolve(lineage, where, types, shape)
        self._show(schema, where, types, shape)
        if schema.table not in tables:
            listed = {properties.TABLES: json.dumps(sorted([*tables, schema.table]))}
            self._engine.run(statements.set_namespace_properties(self._namespace, listed))

    def _check_free(self, schema: TableSchema, where: Place) -> None:
        """Neither name is another table's: making this one would drop what is there. Table `a` has its rows where
        readers look for a table `a_with_deleted`."""
        views, tables = self._engine.view_properties, self._engine.table_properties
        if views(where.rows) is None and tables(where.live) is None:
            return
        raise RefusedError(
            f"warehouse: table {schema.table} would share a name with another: {'.'.join(where.rows)} is there as a "
            f"view, or {'.'.join(where.live)} as a table",
            "add one of both to the sink's exclude_tables, or drop what is of no use from the catalog",
        )

    def _create(self, where: Place, types: Mapping[str, str], shape: Mapping[str, str]) -> None:
        # What is left of objects whose files are gone.
        self._engine.drop(where.live)
        self._engine.drop(where.rows)
        namespace = where.rows[:-1]
        for depth in range(1, len(namespace) + 1):
            self._engine.run(statements.create_namespace(namespace[:depth]))
        self._engine.run(statements.create_table(where, types.items(), shape))

    def _evolve(self, lineage: Lineage, where: Place, types: Mapping[str, str], shape: Mapping[str, str]) -> None:
        schema = lineage.newest
        for attempt in range(ATTEMPT_COUNT_MAX):
            found = self._engine.table_properties(where.rows)
            if found is None:
                raise _lost(where)
            _check_owner(schema, where, shape, found)
            # What an earlier generation noted may count other versions.
            is_ours = found.get(properties.GENERATION) == shape[properties.GENERATION]
            version = int(found.get(properties.SCHEMA_VERSION, 0)) if is_ours else 0
            if version > schema.version:
                raise _later(schema, where)
            held = dict(self._engine.table_columns(where.rows))
            for ours in (VERSION, DELETED):
                held.pop(ours, None)
            carried: Collection[str] = lineage.carried(version) if version else types
            change = evolution(held, types, carried)
            if not change and shape.items() <= found.items():
                return
            if lost := next((name for name in change.dropped if name in schema.key), None):
                raise _other_key(schema, where, f"column {lost} of its key has another type")
            try:
                self._engine.evolve(where.rows, change, found, shape)
            except Conflict:
                self._pause(random.random() * min(1.0, 0.05 * 2**attempt))  # noqa: S311
                continue
            if change:
                added, widened = (", ".join(name for name, _ in some) for some in (change.added, change.widened))
                table, dropped = str(schema.table), ", ".join(change.dropped)
                log.info("warehouse table changed", table=table, dropped=dropped, added=added, widened=widened)
            return
        raise SinkError(
            f"warehouse: table {'.'.join(where.rows)}: other writers' commits came before its new columns "
            f"{ATTEMPT_COUNT_MAX} times",
            "one job may write a warehouse: stop the others",
        )

    def _show(self, schema: TableSchema, where: Place, types: Mapping[str, str], shape: Mapping[str, str]) -> None:
        shown = {properties.COLUMNS: shape[properties.COLUMNS]}
        view = self._engine.view_properties(where.live)
        if view is not None and shown.items() <= view.items():
            return
        self._engine.run(statements.create_view(where, types, shown))
        found = self._engine.table_properties(where.rows) or {}
        if found.get(properties.SCHEMA_VERSION) != shape[properties.SCHEMA_VERSION]:
            raise _later(schema, where)  # its job makes the view anew when it starts again


def _check_owner(schema: TableSchema, where: Place, shape: Mapping[str, str], found: Mapping[str, str]) -> None:
    if found.get(properties.TABLE) != shape[properties.TABLE]:
        raise RefusedError(
            f"warehouse: {'.'.join(where.rows)} is not the table of {schema.table}: it was made for another, or by "
            "something else",
            "choose another namespace in the sink's section",
        )
    if found.get(properties.KEY) != shape[properties.KEY]:
        raise _other_key(schema, where, "it has another key")


def _other_key(schema: TableSchema, where: Place, what: str) -> RefusedError:
    name = ".".join(where.rows)
    return RefusedError(
        f"warehouse: {name} can't become what {schema.table} is now: {what}",
        f"drop the table {name} and start the sink again: it is then filled from the topics",
    )


def _lost(where: Place) -> SinkError:
    return SinkError(
        f"warehouse: {'.'.join(where.rows)} was dropped, or its files were deleted: rows may be missing",
        "nothing: the sink starts again and fills the warehouse anew from the topics",
    )


def _later(schema: TableSchema, where: Place) -> SinkError:
    return SinkError(
        f"warehouse: {'.'.join(where.rows)} was prepared with a later schema than version {schema.version} of "
        f"{schema.table}",
        "nothing: the sink starts again and reads the newest schema; stop a second job, if there is one",
    )

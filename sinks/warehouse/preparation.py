"""Preparation of a table's objects in the warehouse: they are created, or changed to a new version of the schema while
rows and readers exist.

The columns and the record of the schema change in one commit of the catalog, so a second writer, or the successor of
one that was killed, finds either the old or the new version.
"""

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from cdc.model.control import table_key
from cdc.model.events import TableId, TableSchema
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.evolution import Evolution, evolution
from sinks.warehouse.layout import Layout
from sinks.warehouse.merging import PreparedTable
from sinks.warehouse.naming import OWN_COLUMNS, TableLocation, quoted

log = structlog.get_logger(__name__)

# Conflicts with another writer's commits are retried; each attempt costs some milliseconds.
ATTEMPT_COUNT_MAX: Final = 20


class Preparation:
    """Prepares the tables of one namespace."""

    def __init__(self, engine: Engine, namespace: str, pause: Callable[[float], None]) -> None:
        self._engine = engine
        self._namespace = (namespace,)
        self._pause = pause

    def discard(self, table: TableId, where: TableLocation) -> None:
        """Drops the table and its deleted keys, including files, if they belong to this source table. Raises
        RefusedError for a table that keeps every change: the topics no longer contain all of them.
        """
        found = self._engine.table_properties(where.rows)
        if found is None or found.get(properties.TABLE) != table_key(table):
            return
        mode, name = found.get(properties.MODE, "current"), ".".join(where.rows)
        if mode != "current":
            raise RefusedError(
                f"warehouse: {name} is a {mode}, whose rows can't be written again from the topics: it is not replaced "
                "by a table of another shape",
                "configure the mapping and the mode with which it was created; or, to keep it beside a new one, rename "
                f"it in the catalog (ALTER TABLE {name} RENAME TO ...), then restart the sink",
            )
        for name_parts in (where.deleted, where.rows):
            self._engine.run(statements.purge_table(name_parts))

    def prepare(self, schema_history: SchemaHistory, table: PreparedTable, layout: Layout) -> None:
        """Implements `sinks.contract.Sink.prepare`."""
        schema, where, types = schema_history.newest, table.place, table.form.types
        noted = self._engine.namespace_properties(self._namespace) or {}
        marker, tables = noted.get(properties.GENERATION), properties.listed_tables(noted)
        found = self._engine.table_properties(where.rows)
        is_ours = found is not None and found.get(properties.GENERATION) in properties.markers(noted)
        if marker is None or (schema.table in tables and not is_ours):
            raise _lost(where)
        if found is not None and is_ours and schema.table in tables:
            marker = found[properties.GENERATION]  # an adopted table keeps its own
        shape = {
            properties.TABLE: table_key(schema.table),
            properties.KEY: json.dumps(schema.key),
            properties.COLUMNS: json.dumps(list(types.items())),
            properties.MODE: table.mode,
            properties.SCHEMA_VERSION: str(schema.version),
            properties.GENERATION: marker,
        }
        if found is None:
            self._create(table, layout, shape)
        else:
            self._evolve(schema_history, table, shape)
            self._lay_out(where, layout)
        if schema.table not in tables:
            listed = {properties.TABLES: json.dumps(sorted([*tables, schema.table]))}
            self._engine.run(statements.set_namespace_properties(self._namespace, listed))

    def _create(self, table: PreparedTable, layout: Layout, shape: Mapping[str, str]) -> None:
        where, key_types = table.place, {name: table.form.types[name] for name in table.key}
        for name in (where.deleted, where.rows):
            self._engine.drop(name)  # an entry in the catalog whose files are missing
        if table.mode == "current":
            self._create_namespaces(where.deleted)
            columns = {**key_types, **statements.DELETED_COLUMNS}
            owner = {properties.TABLE: shape[properties.TABLE], properties.DELETED_KEYS: "true"}
            self._engine.run(statements.create_table(where.deleted, columns, owner))
        self._create_namespaces(where.rows)
        columns = {**table.form.types, **OWN_COLUMNS[table.mode]}
        first = Layout(tuple(part for part in layout.partitions if not statements.is_column(part)))
        noted = {**shape, properties.LAYOUT: _as_json(first)}
        self._engine.run(statements.create_table(where.rows, columns, noted, first.partitions))
        self._lay_out(where, layout)

    def _create_namespaces(self, name: tuple[str, ...]) -> None:
        for depth in range(1, len(name)):
            self._engine.run(statements.create_namespace(name[:depth]))

    def _lay_out(self, where: TableLocation, layout: Layout) -> None:
        """Sets partitions and sort order for rows that are written from now on."""
        found = self._engine.table_properties(where.rows) or {}
        if found.get(properties.LAYOUT) == _as_json(layout):
            return
        held = _layout(found)
        for transform in held.partitions:
            if transform not in layout.partitions:
                self._engine.run(statements.partition(where.rows, "DROP", transform))
        for transform in layout.partitions:
            if transform not in held.partitions:
                self._engine.run(statements.partition(where.rows, "ADD", transform))
        if held.sorts != layout.sorts:
            self._engine.run(statements.order(where.rows, layout.sorts))
        ever = sorted({*_partitions_ever(found), *layout.partitions})
        noted = {properties.LAYOUT: _as_json(layout), properties.PARTITIONS_EVER: json.dumps(ever)}
        self._engine.run(statements.set_table_properties(where.rows, noted))

    def _evolve(self, schema_history: SchemaHistory, table: PreparedTable, shape: Mapping[str, str]) -> None:
        schema, where, types = schema_history.newest, table.place, table.form.types
        for attempt in range(ATTEMPT_COUNT_MAX):
            found = self._engine.table_properties(where.rows)
            if found is None:
                raise _lost(where)
            _check_owner(schema, where, shape, found)
            # Versions that an earlier generation recorded may be those of other schemas.
            is_ours = found.get(properties.GENERATION) == shape[properties.GENERATION]
            version = int(found.get(properties.SCHEMA_VERSION, 0)) if is_ours else 0
            if version > schema.version:
                raise _later(schema, where)
            held = dict(self._engine.table_columns(where.rows))
            for ours in OWN_COLUMNS[table.mode]:
                held.pop(ours, None)
            carried: Collection[str] = schema_history.carried(version) if version else types
            change = evolution(held, types, carried)
            lost = next((name for name in change.dropped if name in schema.key), None)
            if table.mode != "current":
                change = change.keeping(schema.version)
            if not change and shape.items() <= found.items():
                return
            if lost is not None:
                raise _other_key(schema, where, f"column {lost} of its key has another type")
            if (gone := _partitioned_by(found, change.dropped)) is not None:
                raise _other_key(
                    schema, where, f"its files are partitioned by column {gone}, which was dropped or has another type"
                )
            if self._release(where, found, [*change.dropped, *(name for name, _ in change.renamed)]):
                continue
            try:
                if table.mode == "current":  # first, because deleted keys must fit into their table
                    self._widen_keys(table, [pair for pair in change.widened if pair[0] in schema.key])
                self._engine.evolve(where.rows, change, found, shape)
            except Conflict:
                self._pause(random.random() * min(1.0, 0.05 * 2**attempt))  # noqa: S311
                continue
            if change:
                added, widened = (", ".join(name for name, _ in some) for some in (change.added, change.widened))
                dropped = ", ".join(change.dropped)
                log.info(
                    "warehouse table changed", table=str(schema.table), dropped=dropped, added=added, widened=widened
                )
            return
        raise SinkError(
            f"warehouse: table {'.'.join(where.rows)}: adding columns conflicted with other writers' commits "
            f"{ATTEMPT_COUNT_MAX} times",
            "only one job may write a warehouse: stop the others",
        )

    def _release(self, where: TableLocation, found: Mapping[str, str], dropped: Collection[str]) -> bool:
        """Removes partitions and sort order by columns that are to be dropped. Returns whether there were any."""
        held = _layout(found)
        gone = {part for part in (*held.partitions, *held.sorts) if any(quoted(name) in part for name in dropped)}
        if gone:
            left = Layout(
                *(tuple(part for part in parts if part not in gone) for parts in (held.partitions, held.sorts))
            )
            self._lay_out(where, left)
        return bool(gone)

    def _widen_keys(self, table: PreparedTable, widened: Sequence[tuple[str, str]]) -> None:
        deleted = table.place.deleted
        held = self._engine.table_columns(deleted) if widened else {}
        if change := Evolution(widened=tuple(pair for pair in widened if held[pair[0]] != pair[1])):
            self._engine.evolve(deleted, change, self._engine.table_properties(deleted) or {}, {})


def _partitions_ever(found: Mapping[str, str]) -> list[str]:
    transforms: list[str] = json.loads(found.get(properties.PARTITIONS_EVER, "[]"))
    return transforms


def _partitioned_by(found: Mapping[str, str], dropped: Iterable[str]) -> str | None:
    """Returns the first dropped column by which files may be partitioned, now or by an earlier configuration. Iceberg
    can't merge into files whose partition column does not exist any more.
    """
    ever = _partitions_ever(found)
    return next((name for name in dropped if any(quoted(name) in part for part in ever)), None)


def _layout(found: Mapping[str, str]) -> Layout:
    return Layout(*map(tuple, json.loads(found.get(properties.LAYOUT, "[[], []]"))))


def _as_json(layout: Layout) -> str:
    return json.dumps([layout.partitions, layout.sorts])


def _check_owner(schema: TableSchema, where: TableLocation, shape: Mapping[str, str], found: Mapping[str, str]) -> None:
    if found.get(properties.TABLE) != shape[properties.TABLE]:
        raise RefusedError(
            f"warehouse: {'.'.join(where.rows)} is not the table of {schema.table}: it was created for another table, "
            "or by another program",
            "correct topics.prefix if it was changed or mistyped; otherwise choose another namespace in the sink's "
            "section",
        )
    if found.get(properties.KEY) != shape[properties.KEY]:
        raise _other_key(schema, where, "it has another key")
    if (mode := found.get(properties.MODE, "current")) != shape[properties.MODE]:
        raise _other_key(schema, where, f"its mode is {mode}")


def _other_key(schema: TableSchema, where: TableLocation, what: str) -> RefusedError:
    name = ".".join(where.rows)
    return RefusedError(
        f"warehouse: {name} can't be changed to the present form of {schema.table}: {what}",
        "undo the change of the table or of the sink's section, if there was one; otherwise rename the table in the "
        f"catalog (ALTER TABLE {name} RENAME TO ...) and restart the sink: it fills a new one from the topics, which "
        "do not have the former entries of a history",
    )


def _lost(where: TableLocation) -> SinkError:
    return SinkError(
        f"warehouse: {'.'.join(where.rows)} was dropped, or its files were deleted: rows may be missing",
        "nothing to do: the sink restarts and fills the warehouse again from the topics",
    )


def _later(schema: TableSchema, where: TableLocation) -> SinkError:
    return SinkError(
        f"warehouse: {'.'.join(where.rows)} was prepared with a later schema than version {schema.version} of "
        f"{schema.table}",
        "nothing to do: the sink restarts and reads the newest schema; stop a second job, if there is one",
    )

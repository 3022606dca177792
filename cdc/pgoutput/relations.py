"""Relation messages and schemas: whether one describes a table as the other does, and the one made of the other."""

from cdc.model.events import TableId, TableSchema
from cdc.pgoutput.messages import Relation, RelationColumn


def relation_differs(schema: TableSchema, relation: Relation) -> str | None:
    """Returns the differences between relation and schema in words; None if rows can be published with this schema."""
    if relation.oid != schema.oid:
        return f"its oid is {relation.oid}, but was {schema.oid}: the table was recreated"
    if (relation.schema, relation.name) != schema.table:
        return f"it is called {TableId(relation.schema, relation.name)} now"
    was = [column.name for column in schema.columns]
    captured = captured_columns(relation)
    now = [column.name for column in captured]
    if was != now:
        added = [name for name in now if name not in was]
        dropped = [name for name in was if name not in now]
        if added or dropped:
            changes = [f"column {name} was added" for name in added] + [
                f"column {name} was dropped" for name in dropped
            ]
            return ", ".join(changes)
        return f"its columns are in another order: {', '.join(now)}"
    for column, sent in zip(schema.columns, captured, strict=True):
        if sent.type_oid != column.type_oid:
            return f"column {column.name} has type oid {sent.type_oid}, it was {column.type_oid} ({column.type_name})"
        if sent.type_modifier != column.type_modifier:
            return (
                f"column {column.name} has type modifier {sent.type_modifier}, "
                f"it was {column.type_modifier} ({column.type_name})"
            )
    for name in schema.key:
        if not captured[was.index(name)].is_key:
            return f"key column {name} is not in the replica identity"
    return None


def relation_of(schema: TableSchema) -> Relation:
    """Returns the relation message that the stream would send for this schema under REPLICA IDENTITY DEFAULT."""
    return Relation(
        oid=schema.oid,
        schema=schema.table.schema,
        name=schema.table.name,
        replica_identity="d",
        columns=tuple(
            RelationColumn(c.name in schema.key, c.name, c.type_oid, c.type_modifier) for c in schema.columns
        ),
    )


def sent_places(relation: Relation) -> tuple[int | None, ...]:
    """Returns for each value that the server sends its column in the schema; None for a column that is left out."""
    captured = iter(range(len(relation.columns)))
    return tuple(next(captured) if column.is_captured else None for column in relation.columns)


def captured_columns(relation: Relation) -> tuple[RelationColumn, ...]:
    """Returns the relation's columns that are published."""
    return tuple(column for column in relation.columns if column.is_captured)

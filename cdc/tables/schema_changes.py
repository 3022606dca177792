"""The meaning of a change to a table's definition: whether its rows can still be published, and whether stored rows
changed without row events. Pure.

The stream announces a new schema in a relation message, before the first row that has it. It does not report what the
change did to stored rows: a column that was added with a default has a value in all of them, a dropped or renamed
column is gone from them, a changed type may have computed new values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from cdc.model.events import Column, TableSchema
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts
from cdc.pgoutput.messages import Relation, RelationColumn
from cdc.pgoutput.relations import captured_columns

_SMALLINT, _INTEGER, _BIGINT, _TEXT, _VARCHAR, _NUMERIC = 21, 23, 20, 25, 1043, 1700
_ANY_ENUM, _ANY_ENUM_ARRAY = -1, -2  # not the oid of any type
# Type changes of a key column that keep the text of its values, and so the record keys.
_KEY_MAY_BECOME: Final = {
    _SMALLINT: {_INTEGER, _BIGINT},
    _INTEGER: {_SMALLINT, _BIGINT},
    _BIGINT: {_SMALLINT, _INTEGER},
    _TEXT: {_VARCHAR},
    _VARCHAR: {_TEXT, _VARCHAR},
}

Describe = Callable[[int, Sequence[RelationColumn]], Sequence[Column]]
"""Returns the columns of a relation message for the table with this oid, as the catalog describes them."""


def why_not_followed(schema: TableSchema, relation: Relation) -> str | None:
    """Returns why rows of this relation can't be published as the table's, or None if they can, perhaps with a new
    version of the schema."""
    if relation.oid != schema.oid:
        return f"its oid is {relation.oid}, but was {schema.oid}: the table was recreated"
    if (relation.schema, relation.name) != schema.table:
        return f"it is called {relation.schema}.{relation.name} now"
    sent = {column.name: column for column in relation.columns}
    was = {column.name: column for column in schema.columns}
    for name in schema.key:
        if name not in sent:
            return f"key column {name} was dropped or renamed"
        if not sent[name].is_key:
            return f"key column {name} is not in the replica identity"
        if not _are_same_keys(_sent_type(was[name]), _sent_type(sent[name])):
            return f"the type of key column {name} was changed from {was[name].type_name}: records have other keys"
    return None


def _sent_type(column: Column | RelationColumn) -> tuple[int, int]:
    return column.type_oid, column.type_modifier


def _are_same_keys(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Returns whether values of both types have the same text. A type is given as oid and modifier."""
    if before == now:
        return True
    if before[0] == now[0] == _NUMERIC:
        scales = [(value - 4) & 0x7FF if value >= 0 else None for value in (before[1], now[1])]
        return scales[0] == scales[1]
    return now[0] in _KEY_MAY_BECOME.get(before[0], ())


def _text_type(column: Column) -> tuple[int, int]:
    """Returns oid and modifier of the type on which the text of the column's values depends. For an enum the text is
    the label, for a domain the base type's text, so another type of that name gives the same text."""
    if column.type_kind == "e":
        return _ANY_ENUM, -1
    if column.element_oid and column.labels:
        return _ANY_ENUM_ARRAY, -1
    modifier = column.type_modifier if column.base_type_modifier is None else column.base_type_modifier
    return column.base_type_oid or column.type_oid, modifier


def why_other_keys(before: TableSchema, key: Sequence[str], columns: Sequence[Column]) -> str | None:
    """Returns why records with these key columns would have other keys than the table's records, or None if they would
    have the same. A type that was dropped and created again has another oid but the same text."""
    if tuple(key) != before.key:
        return f"its key is ({', '.join(key)}), but its records have ({', '.join(before.key)})"
    was, now = ({column.name: column for column in some} for some in (before.columns, columns))
    for name in key:
        if not _are_same_keys(_text_type(was[name]), _text_type(now[name])):
            return f"key column {name} is {now[name].type_name}, but its records have {was[name].type_name}"
    return None


def key_types_replaced(before: TableSchema, columns: Sequence[Column]) -> str | None:
    """Returns which key column has another type with the same text, in words, or None. The rows must be read again,
    since their changes are unknown while the type was replaced."""
    now = {column.name: column for column in columns}
    for column in before.columns:
        found = now.get(column.name) if column.name in before.key else None
        if found is not None and not _are_same_keys(_sent_type(column), _sent_type(found)):
            return f"the type of key column {column.name} was replaced: {found.type_name}"
    return None


def followed(schema: TableSchema, relation: Relation, describe: Describe) -> TableSchema:
    """Returns the next version of the table's schema, with the relation's columns. Raises what `describe` raises."""
    known = {(column.name, _sent_type(column)): column for column in schema.columns}
    sent = captured_columns(relation)
    news = [column for column in sent if (column.name, _sent_type(column)) not in known]
    if news:
        known |= {(column.name, _sent_type(column)): column for column in describe(relation.oid, news)}
    columns = tuple(known[column.name, _sent_type(column)] for column in sent)
    return replace(schema, version=schema.version + 1, columns=columns, filled=())


def new_columns(before: TableSchema, after: TableSchema) -> list[str]:
    """Returns the names of columns that the later version has and the earlier one has not."""
    had = {column.name for column in before.columns}
    return [column.name for column in after.columns if column.name not in had]


def announced(facts: TableFacts, before: TableSchema, after: TableSchema) -> TableFacts:
    """Returns the facts with the column changes that the stream announced. At the next catalog poll the columns may
    have their old names and types again, but rows were published in between, and earlier records lack a column that had
    another name."""
    now = {column.name: column for column in after.columns}
    diverged = {c.name for c in before.columns if c.name not in now or _form(now[c.name]) != _form(c)}
    columns = (c.model_copy(update={"strayed": True}) if c.name in diverged else c for c in facts.columns)
    return facts.model_copy(
        update={
            "columns": tuple(columns),
            "announced": facts.announced | dict(after.filled),
            "is_unclear": facts.is_unclear or is_unclear(facts, before, after),
        }
    )


def is_unclear(facts: TableFacts, before: TableSchema, after: TableSchema) -> bool:
    """Returns whether facts that come later can't say of each column that `before` has whether it is one of theirs:
    columns that were added since `facts` have gone or changed their type, or their names may have changed. An added
    column has the greatest number, so it is the last."""
    now = {column.name: column for column in after.columns}
    numbered = {column.name for column in facts.columns}
    kept = [column.name for column in before.columns if column.name in now]
    is_appended = [column.name for column in after.columns] == [*kept, *new_columns(before, after)]
    return not is_appended or any(
        column.name not in numbered and (column.name not in now or _form(now[column.name]) != _form(column))
        for column in before.columns
    )


def _form(column: Column) -> int:
    return _TEXT if column.base_type_oid == _VARCHAR else column.base_type_oid


def with_partition(facts: TableFacts, oid: int) -> TableFacts:
    """Returns the facts of a partitioned table with a partition whose rows are in the stream. The partition may be gone
    at the next catalog poll."""
    if any(part.oid in (oid, facts.oid) for part in facts.storage):
        return facts
    return facts.model_copy(update={"storage": (*facts.storage, StorageFacts(oid=oid, file=0, is_met=True))})


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """The columns that came and went between two polls of the catalog."""

    added: tuple[ColumnFacts, ...]
    dropped: tuple[ColumnFacts, ...]

    @classmethod
    def between(cls, then: TableFacts, now: TableFacts) -> Self:
        had, have = ({column.number for column in facts.columns} for facts in (then, now))
        return cls(
            tuple(column for column in now.columns if column.number not in had),
            tuple(column for column in then.columns if column.number not in have),
        )

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(column.number for column in (*self.added, *self.dropped))

    def why_unclear(
        self, schema: TableSchema, announced: Mapping[str, str], constants: Mapping[str, str]
    ) -> str | None:
        """Returns why records of earlier versions, with what schemas say of them, may not have the rows' content; None
        if they have. `schema`: the newest version; `announced`: the constants that schemas say; `constants`: those that
        the catalog has, in the same form."""
        added = {column.name for column in self.added}
        if again := added & ({column.name for column in self.dropped} | set(schema.dropped)):
            return f"records may have values of an earlier column {min(again)}"
        published = {column.name for column in schema.columns}
        for column in self.added:
            value = announced.get(column.name)
            if column.has_missing and column.name in published and (not value or constants.get(column.name) != value):
                return f"the default of column {column.name} is not one constant for all rows"
        return None


def rows_changed(
    then: TableFacts,
    now: TableFacts,
    filled: Collection[int],
    *,
    is_named: bool = True,
    besides: Collection[int] = (),
) -> str | None:
    """Returns what changed stored rows, or may have changed them, without row events, in words, or None. `filled`: oids
    of added partitions that hold rows. `is_named`: the publication names the table. PostgreSQL refuses to make such a
    table unlogged, and publishes its changes under whatever name it has. `besides`: numbers of columns that may have
    been added with a default, or dropped."""
    was = {column.number: column for column in then.columns}
    for column in now.columns:
        before = was.get(column.number)
        if before is None and column.has_missing and column.number not in besides:
            return f"column {column.name} was added with a default"
        if before is not None and before.name != column.name:
            return f"column {before.name} was renamed to {column.name}"
        if before is not None and before.strayed:
            return f"column {column.name} had another name or type meanwhile"
        if before is not None and before.form and before.form != column.form:
            return f"the type of column {column.name}, or a type within it, was changed: its values have another text"
    present = {column.number for column in now.columns}
    if dropped := was.keys() - present - set(besides):
        return f"column {was[min(dropped)].name} was dropped"
    if then.attributes and not present.issuperset(range(then.attributes + 1, now.attributes + 1)):
        return "a column was added, and dropped again"
    labels = dict(label.split() for label in then.labels)
    if any(labels.get(oid, xmin) != xmin for oid, xmin in map(str.split, now.labels)):
        return "a value of an enum was renamed"
    files_then = {part.oid: part.file for part in then.storage}
    files = {part.oid: part.file for part in now.storage}
    is_partitioned = then.oid not in files_then
    if files_then.keys() - files.keys():
        return "a partition was detached or dropped"
    attached = {part.oid: part.attached for part in then.storage if part.attached}
    if filled or any(attached.get(part.oid, part.attached) != part.attached for part in now.storage):
        return "a partition with rows was attached"
    if any(files[part.oid] != part.file for part in then.storage if not part.is_met):
        # VACUUM FULL, CLUSTER and TRUNCATE rewrite too, but do not change the columns. The stream reports TRUNCATE,
        # except that of a single partition.
        altered = {(c.number, c.changed_in) for c in now.columns} != {(c.number, c.changed_in) for c in then.columns}
        if altered or then.generated != now.generated:
            return "a column's values were computed again"
        if is_partitioned:
            return "a partition was truncated or rewritten"
    if not is_named:
        return _unlogged(then, now)
    return None


def _unlogged(then: TableFacts, now: TableFacts) -> str | None:
    """Returns why changes of a table may not have been in the log for a while, for a table that is logged and has its
    name again."""
    parts = {part.oid: part for part in now.storage}
    for before in then.storage:
        part = parts.get(before.oid)
        # TRUNCATE and SET TABLESPACE keep the toast table. Of a table without one, no fact says what rewrote it.
        is_kept = part is None or part.file == before.file or 0 != part.toast == before.toast
        if not is_kept and not before.is_met:
            return "the table was rewritten: it may have been unlogged meanwhile"
    if then.row_type and then.row_type != now.row_type:
        return "the table was renamed or moved meanwhile: it may not have been published"
    return None

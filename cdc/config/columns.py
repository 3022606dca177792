"""The columns that leave the source: source.include_columns and source.exclude_columns. Pure.

Patterns are regular expressions that match the whole of `schema.table.column`. A column that is left out is in no
record, no schema and no statement that reads rows; the server sends it all the same, and the codec skips it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BeforeValidator

from cdc.model.errors import ConfigError, SourceError
from cdc.model.events import Column, TableId, TableSchema
from cdc.pgoutput.messages import Relation


def _patterns(value: Any) -> Any:
    """Returns regular expressions from a list, or from one text with commas, as Debezium writes them."""
    patterns = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    for pattern in patterns if isinstance(patterns, list | tuple) else ():
        try:
            re.compile(str(pattern))
        except re.error as error:
            raise ValueError(f"{pattern} is not a regular expression: {error.msg}") from None
    return patterns


Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns that match one of `include` (all if it is empty), without those that match one of `exclude`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, table: TableId, column: str) -> bool:
        name = f"{table}.{column}"
        is_included = not self.include or _matches(self.include, name)
        return is_included and not _matches(self.exclude, name)

    def of(self, table: TableId, columns: Sequence[Column], key: Iterable[str]) -> tuple[Column, ...]:
        """Returns the captured columns. Raises ConfigError for a key column that is left out."""
        for name in key:
            if not self.takes(table, name):
                option = "exclude_columns" if _matches(self.exclude, f"{table}.{name}") else "include_columns"
                raise ConfigError(
                    f"source.{option} leaves out column {name} of table {table}, which is part of the record key",
                    f"correct source.{option}, or choose other key columns in source.key_columns",
                )
        return tuple(column for column in columns if self.takes(table, column.name))

    def marked(self, relation: Relation) -> Relation:
        """Returns the relation with its left-out columns marked."""
        if not self.include and not self.exclude:
            return relation
        table = TableId(relation.schema, relation.name)
        return replace(
            relation,
            columns=tuple(replace(c, is_captured=self.takes(table, c.name)) for c in relation.columns),
        )

    def require_meaning(self, columns: Iterable[tuple[TableId, str]]) -> None:
        """`columns`: all that the captured tables have. Raises ConfigError for a pattern that matches none of them: it
        may be a mistyped name, whose values would be published."""
        names = [f"{table}.{column}" for table, column in columns]
        for option, patterns in (("include_columns", self.include), ("exclude_columns", self.exclude)):
            for pattern in patterns:
                if not any(re.fullmatch(pattern, name) for name in names):
                    raise ConfigError(
                        f"source.{option}: {pattern} matches no column of the tables in source.tables",
                        "a pattern must match the whole of schema.table.column; correct or remove it",
                    )

    def require_unpublished(self, schemas: Iterable[TableSchema]) -> None:
        """Raises SourceError for a column that would be left out, but is in the topics already."""
        for schema in schemas:
            for column in schema.columns:
                if not self.takes(schema.table, column.name):
                    raise SourceError(
                        f"column {column.name} of table {schema.table} is excluded now, but was published before",
                        "take the change of source.include_columns or source.exclude_columns back; or, as what is in "
                        "the topics stays there, start with a new topics.prefix and slot",
                    )


ALL_COLUMNS = ColumnChoice()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The configuration of one table."""

    key: tuple[str, ...] | None = None  # instead of the table's own; none: its records have no key
    columns: ColumnChoice = ALL_COLUMNS
    is_outbox: bool = False  # only inserted rows are relevant


AS_IT_IS = Chosen()


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)

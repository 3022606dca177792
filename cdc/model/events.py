"""Tables, columns and schemas, and the numbers that order changes: positions and versions."""

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Self

from pydantic import Field

from cdc.model.lsn import Lsn, format_lsn

# version = epoch << 48 | seq: 15 + 48 bits, a positive signed 64-bit integer, so that every store's largest
# integer type can hold and compare it.
SEQ_BITS = 48
_USER_OID_MIN = 16_384  # oids of what users create: the same type has another one in another database
SEQ_MAX = (1 << SEQ_BITS) - 1
EPOCH_MAX = (1 << 15) - 1
VERSION_HEADER = "watershed.version"  # of a delete's record, which has no value to hold it: ASCII decimal


def pack_version(epoch: int, seq: int) -> int:
    """The one number that every sink compares. Raises ValueError outside 15 + 48 bits."""
    if not 0 <= epoch <= EPOCH_MAX or not 0 <= seq <= SEQ_MAX:
        raise ValueError(f"version out of range: epoch {epoch}, seq {seq}")
    return epoch << SEQ_BITS | seq


def unpack_version(version: int) -> tuple[int, int]:
    """Returns (epoch, seq) of a version."""
    return version >> SEQ_BITS, version & SEQ_MAX


class TableId(NamedTuple):
    """A table's name in the source: schema and table, unquoted."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `schema.table`, split at the first dot, or after a schema in double quotes, `"my.schema".table`. Raises
        ValueError for anything else."""
        quoted = _QUOTED_SCHEMA.match(text)
        schema, dot, name = (quoted[1].replace('""', '"'), ".", text[quoted.end() :]) if quoted else text.partition(".")
        if not (schema and dot and name):
            raise ValueError(f"{text!r} is not schema.table")
        return cls(schema, name)

    def __str__(self) -> str:
        """Returns the form that `parse` reads."""
        is_plain = "." not in self.schema and not self.schema.startswith('"')
        schema = self.schema if is_plain else '"' + self.schema.replace('"', '""') + '"'
        return f"{schema}.{self.name}"


_QUOTED_SCHEMA = re.compile(r'"((?:[^"]|"")+)"\.')


class Position(NamedTuple):
    """The place of a change in the source: its transaction's commit record, and its ordinal among the transaction's row
    changes as received (from 0, before our own filters)."""

    commit_lsn: Lsn
    tx_index: int

    def __str__(self) -> str:
        return f"{format_lsn(self.commit_lsn)}#{self.tx_index}"


@dataclass(frozen=True, slots=True)
class Column:
    """A published column."""

    name: str
    type_oid: int
    type_modifier: int
    # As format_type() prints it: numeric(10,2), timestamp with time zone, text[]. Control's records call it `type`.
    type_name: Annotated[str, Field(alias="type")]
    nullable: bool
    # The base type's category (pg_type.typtype after domains are resolved): 'e' marks an enum, 'b' a base type.
    type_kind: str = "b"
    # For a domain the base type's oid, for an array still the array's own; else the same as type_oid.
    base_type_oid: int = 0
    # For an array, or a domain over one: the type of its elements, domains resolved, and their delimiter.
    element_oid: int = 0
    delimiter: str = ","
    # For a domain the modifier that it gives its base type; None if the column's own modifier applies.
    base_type_modifier: int | None = None
    labels: tuple[str, ...] = ()  # of an enum, or of an array's enum, in the enum's order


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table's published schema. Every record has the version with which it was written."""

    table: TableId
    version: int  # from 1
    oid: int  # pg_class.oid
    columns: tuple[Column, ...]  # in attribute order, as pgoutput sends them
    key: tuple[str, ...]  # column names of the record key, in key order
    topic: str
    # What records of the versions before this one lack, and do not say: columns that it added with a constant default,
    # each with the value of the rows that were there, as JSON text in the records' form.
    filled: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    # Columns that were dropped without publishing the rows again: records of earlier versions still have their values.
    dropped: tuple[str, ...] = field(default=(), compare=False)

    def has_form_of(self, other: Self) -> bool:
        """Says whether rows have the same records in both: key and columns are the same, except for the oids that
        another database has given to the table and to types of users."""
        return (self.table, self.topic, self.key) == (other.table, other.topic, other.key) and (
            [_without_oids(column) for column in self.columns] == [_without_oids(column) for column in other.columns]
        )


def _without_oids(column: Column) -> Column:
    oids = column.type_oid, column.base_type_oid, column.element_oid
    type_oid, base, element = (min(oid, _USER_OID_MIN) for oid in oids)
    return replace(column, type_oid=type_oid, base_type_oid=base, element_oid=element)

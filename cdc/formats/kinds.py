"""The kind of a column's values in records: their encoder and their schema."""

from dataclasses import dataclass

from cdc.formats.connect import Node
from cdc.model.events import Column
from cdc.pgoutput.values import Encoder


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The values of one type in one form."""

    encode: Encoder
    node: Node  # Connect's schema, without `optional`
    zero: str  # JSON text that Debezium writes for a NOT NULL value that is not known


@dataclass(frozen=True, slots=True)
class ValueType:
    """The properties of a type that decide about its values' form, for a column or for an array's elements."""

    oid: int  # pg_type.oid; domains are resolved
    modifier: int
    name: str  # of an extension's type, without schema; "" for a built-in one
    labels: tuple[str, ...]  # of an enum


FIRST_USER_OID = 16_384  # FirstNormalObjectId: initdb made none of the types from here on


def value_type(column: Column) -> ValueType:
    """Returns the type of a column's values, or of an array's elements."""
    oid = column.element_oid or column.base_type_oid or column.type_oid
    modifier = column.type_modifier if column.base_type_modifier is None else column.base_type_modifier
    name = ""
    if oid >= FIRST_USER_OID and column.type_kind == "b":  # `public.hstore`, `vector(3)[]` → `hstore`, `vector`
        name = column.type_name.removesuffix("[]").partition("(")[0].rpartition(".")[2].strip('"')
    return ValueType(oid, modifier, name, column.labels)


def is_of_domain(column: Column) -> bool:
    """Says whether the column is an array of a domain: only such an array is a user's type with built-in elements."""
    return column.element_oid < FIRST_USER_OID <= (column.base_type_oid or column.type_oid)


def numeric_modifier(modifier: int) -> tuple[int, int] | None:
    """(precision, scale); None for a numeric of any length. The modifier is precision << 16 | scale (11 bits, signed),
    counted from 4."""
    if modifier < 4:
        return None
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024

"""The formats of a table's columns in records, by profile."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.formats.connect import (
    BOOLEAN,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    Node,
    array_of,
    envelope_schema,
    has_floats,
    key_schema,
    optional,
    required,
)
from cdc.formats.debezium_kinds import FAMILIES, kind_of, scalar_kind
from cdc.formats.kinds import ValueKind, value_type
from cdc.formats.masks import masked, masks_of
from cdc.model.errors import ConfigError, UnconvertibleError
from cdc.model.events import Column, TableSchema
from cdc.model.topics import Topics
from cdc.pgoutput.arrays import ArrayEncoder
from cdc.pgoutput.values import ColumnEncoding, Encoder, boolean, encoder_for, floating, integer, quote


class UnconvertibleWarning(UserWarning):
    """Warns that values which a column's form can't represent are published as null. Issued once for each column."""


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """The form of a column in records, and its schema."""

    form: ColumnEncoding
    node: Node  # with `optional`; not used if the column is left out


_READABLE_NODES: Final[dict[int, Node]] = {
    16: BOOLEAN,
    20: INT64,
    21: INT16,
    23: INT32,
    26: INT64,  # oid
    700: FLOAT32,
    701: FLOAT64,
}


def readable(column: Column, options: FormatOptions) -> ValueKind:
    """Decimals and times as text, and so on: cdc.pgoutput.values; where a mode was chosen, Debezium's form of it."""
    of = value_type(column)
    if any(getattr(options, mode) is not None and is_of(of) for mode, is_of in FAMILIES.items()):
        chosen = scalar_kind(of, options)
        assert chosen is not None, "every type of the families has a form in each mode"
        encode, node = chosen.encode, chosen.node
        if column.element_oid:
            encode = ArrayEncoder(encode, column.delimiter)
    else:
        encode, node = encoder_for(column), _READABLE_NODES.get(of.oid, STRING)
    if column.element_oid and options.is_described:
        encode = _as_its_schema(encode)
    return ValueKind(encode, array_of(node) if column.element_oid else node, "null")


def _as_its_schema(encode: Encoder) -> Encoder:
    """Restricts arrays to one dimension without subscripts, because a schema can describe no others."""

    def encode_flat(text: str) -> str:
        if text.startswith(("{{", "[")):
            raise UnconvertibleError(
                "an array of one dimension that begins at 1",
                "use format.encoding json without schemas.enable: schemas can't describe other arrays",
            )
        return encode(text)

    return encode_flat


def column_formats(schema: TableSchema, options: FormatOptions) -> tuple[ColumnFormat, ...]:
    """Returns the formats of all columns, in order. Raises ConfigError for a key column that the profile leaves out,
    and for a column that can't be masked as configured."""
    masks = masks_of(schema, options.masks)
    return tuple(_column_format(schema, column, options, masks.get(column.name)) for column in schema.columns)


def record_nodes(schema: TableSchema, formats: Sequence[ColumnFormat], prefix: str) -> tuple[Node, Node]:
    """Returns the schemas of keys and values. `formats`: of the table's columns."""
    columns = zip(schema.columns, formats, strict=True)
    nodes = {column.name: found.node for column, found in columns if found.form.encode is not None}
    name = Topics(prefix).table(schema.table)  # a schema is called as its topic
    return key_schema(name, [(column, nodes[column]) for column in schema.key]), envelope_schema(name, nodes.items())


def _column_format(schema: TableSchema, column: Column, options: FormatOptions, mask: Mask | None) -> ColumnFormat:
    is_key, is_readable = column.name in schema.key, options.profile == "readable"
    kind = readable(column, options) if is_readable else kind_of(column, options)
    if kind is None:
        if is_key:
            raise ConfigError(
                f"table {schema.table}: key column {column.name} has type {column.type_name}, which profile "
                f"{options.profile} leaves out",
                "set format.include.unknown.datatypes, or use profile readable",
            )
        return ColumnFormat(ColumnEncoding(None), STRING)
    encode, node = kind.encode, kind.node
    if mask is not None:
        encode, node = _masked(masked(mask), encode), {**node, "parameters": {"masked": "true"}}
    if is_readable:
        unknown, is_optional = None, not is_key  # columns that are not known are absent; a key's never are
        if options.schemas_enable and has_floats(node):
            encode = _finite(encode)
    else:
        is_optional = column.nullable and not is_key
        unknown = "null" if is_optional else kind.zero
        if is_optional:
            encode = _null_where_unconvertible(encode, f"{schema.table}, column {column.name}", options)
    form = ColumnEncoding(encode, unknown, is_bounded=mask is not None)
    return ColumnFormat(form, (optional if is_optional else required)(node))


def _masked(change: Encoder, encode: Encoder) -> Encoder:
    return lambda text: encode(change(text))


def _finite(encode: Encoder) -> Encoder:
    """Refuses NaN and infinity, which JSON does not have. Connect's JsonConverter writes texts for them and, with a
    schema, reads any as 0. Profile `debezium` publishes what Debezium writes."""

    def encode_finite(text: str) -> str:
        value = encode(text)
        if any(number in value for number in ('"NaN"', '"Infinity"', '"-Infinity"')):
            raise UnconvertibleError(
                "a finite number", "leave out format.schemas.enable: Kafka Connect's consumers read others as 0"
            )
        return value

    return encode_finite


# Encoders that can represent every value of their type; the codec writes some of them inline.
_NEVER_FAIL: Final[frozenset[Encoder]] = frozenset({boolean, integer, floating, quote})


def _null_where_unconvertible(encode: Encoder, where: str, options: FormatOptions) -> Encoder:
    if encode in _NEVER_FAIL:
        return encode
    mode = options.event_converting_failure_handling_mode

    def encode_or_null(text: str) -> str:
        try:
            return encode(text)
        except UnconvertibleError as error:
            if mode == "fail":
                error.hint += ", or event.converting.failure.handling.mode: skip, which writes null"
                raise
            if mode == "warn":
                warnings.warn(f"{where}: {error.message}: published as null", UnconvertibleWarning, stacklevel=2)
            return "null"

    return encode_or_null

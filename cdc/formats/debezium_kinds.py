"""The form that Debezium gives each PostgreSQL type, by its options. Types that it does not know have none."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cdc.config.format_options import BinaryMode, DecimalMode, FormatOptions, TimeMode
from cdc.formats import debezium_geometry as geometry
from cdc.formats import debezium_values as values
from cdc.formats.connect import (
    BOOLEAN,
    BYTES,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    Node,
    array_of,
    map_of,
    named,
    optional,
    required,
    struct_of,
    vector_of,
)
from cdc.formats.kinds import (
    ValueKind,
    ValueType,
    is_of_domain,
    numeric_modifier,
    value_type,
)
from cdc.model.errors import UnconvertibleError
from cdc.model.events import Column
from cdc.pgoutput.arrays import ArrayEncoder
from cdc.pgoutput.values import Encoder, boolean, floating, integer, quote

_DATA: Final = "io.debezium.data."
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
_GEOMETRY: Final = "io.debezium.data.geometry."
_BITS_MAX: Final = 2_147_483_647

BIT, VARBIT, MONEY, NUMERIC, BYTEA, INTERVAL = 1560, 1562, 790, 1700, 17, 1186
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ = 1082, 1083, 1114, 1184, 1266

_POINT: Final = named(
    struct_of(
        [("x", required(FLOAT64)), ("y", required(FLOAT64)), ("wkb", optional(BYTES)), ("srid", optional(INT32))]
    ),
    _GEOMETRY + "Point",
    doc="Geometry (POINT)",
)


def _text(node: Node = STRING, zero: str = '""') -> ValueKind:
    return ValueKind(quote, node, zero)


def _shape(encode: Encoder, node: Node, zero: str) -> ValueKind:
    return ValueKind(encode, node, encode(zero))


_SHAPE: Final = named(
    struct_of(
        [
            ("wkb", required(BYTES)),
            ("srid", optional(INT32)),
            ("extensions", optional(map_of(STRING, required(STRING)))),
        ]
    ),
    _GEOMETRY + "Geometry",
    version=2,
    doc="Geometry",
)
_GEOGRAPHY: Final = named(
    struct_of([("wkb", required(BYTES)), ("srid", optional(INT32))]), _GEOMETRY + "Geography", doc="Geography"
)

_BY_OID: Final[dict[int, ValueKind]] = {
    16: ValueKind(boolean, BOOLEAN, "false"),
    21: ValueKind(integer, INT16, "0"),
    23: ValueKind(integer, INT32, "0"),
    20: ValueKind(integer, INT64, "0"),
    26: ValueKind(integer, INT64, "0"),  # oid
    700: ValueKind(floating, FLOAT32, "0.0"),
    701: ValueKind(floating, FLOAT64, "0.0"),
    1186: ValueKind(values.interval_us, named(INT64, _TIME + "MicroDuration"), "0"),
    1266: ValueKind(values.zoned_time, named(STRING, _TIME + "ZonedTime"), '"00:00:00Z"'),
    # "char", name, text, char(n), varchar; inet, cidr, macaddr, macaddr8; the ranges
    **dict.fromkeys((18, 19, 25, 1042, 1043, 869, 650, 829, 774, 3904, 3926, 3906, 3908, 3910, 3912), _text()),
    114: _text(named(STRING, _DATA + "Json"), '"{}"'),
    3802: _text(named(STRING, _DATA + "Json"), '"{}"'),
    142: _text(named(STRING, _DATA + "Xml")),
    2950: _text(named(STRING, _DATA + "Uuid")),
    3614: _text(named(STRING, _DATA + "Tsvector")),
    600: _shape(geometry.point, _POINT, "(0,0)"),
    601: _shape(geometry.lseg, _SHAPE, "[(0,0),(0,0)]"),
    602: _shape(geometry.path, _SHAPE, "((0,0))"),
    603: _shape(geometry.box, _SHAPE, "(0,0),(0,0)"),
    604: _shape(geometry.polygon, _SHAPE, "((0,0))"),
    718: _shape(
        geometry.circle,
        named(
            struct_of([("center", required(_POINT)), ("radius", required(FLOAT64))]),
            _GEOMETRY + "Circle",
            doc="Geometry (CIRCLE)",
        ),
        "<(0,0),0>",
    ),
    628: _shape(
        geometry.line,
        named(struct_of((name, required(FLOAT64)) for name in "abc"), _GEOMETRY + "Line", doc="Geometry (LINE)"),
        "{0,0,0}",
    ),
}

# Types of extensions, which have no fixed oid.
_BY_NAME: Final[dict[str, ValueKind]] = {
    "citext": _text(),
    "hstore": ValueKind(values.hstore_json, named(STRING, _DATA + "Json"), '"{}"'),
    "ltree": _text(named(STRING, _DATA + "Ltree")),
    **dict.fromkeys(("isbn", "isbn13", "issn", "issn13", "ismn", "ismn13", "ean13", "upc"), _text()),
    "vector": ValueKind(values.vector, named(vector_of(FLOAT64), _DATA + "DoubleVector"), "[]"),
    "halfvec": ValueKind(values.vector, named(vector_of(FLOAT32), _DATA + "FloatVector"), "[]"),
    "sparsevec": ValueKind(
        values.sparse_vector,
        named(
            struct_of([("dimensions", required(INT16)), ("vector", required(map_of(INT16, required(FLOAT64))))]),
            _DATA + "SparseDoubleVector",
            doc="Sparse double vector",
        ),
        '{"dimensions":0,"vector":[]}',
    ),
    "geometry": ValueKind(geometry.postgis_geometry, _SHAPE, '{"wkb":"","srid":null,"extensions":null}'),
    "geography": ValueKind(geometry.postgis_geography, _GEOGRAPHY, '{"wkb":"","srid":null}'),
}

# Elements for which Debezium has no array: bit, money, name, interval, varbit, xml, refcursor, the geometric ones.
_NO_ARRAY: Final = frozenset({BIT, MONEY, 19, INTERVAL, VARBIT, 142, 1790, 600, 601, 602, 603, 604, 718, 628, 3614})


def kind_of(column: Column, options: FormatOptions) -> ValueKind | None:
    """Returns the kind of a column; None for a type that Debezium leaves out."""
    of = value_type(column)
    if not column.element_oid:
        return scalar_kind(of, options) or _unknown(options)
    if of.oid in _NO_ARRAY and not is_of_domain(column):
        return None
    element = (None if is_of_domain(column) else scalar_kind(of, options)) or _unknown(options)
    return None if element is None else _array_kind(column, element)


def _unknown(options: FormatOptions) -> ValueKind | None:
    """The bytes of PostgreSQL's text, where types that Debezium does not know are wanted."""
    if not options.include_unknown_datatypes:
        return None
    mode = options.binary_handling_mode or "bytes"
    return ValueKind(values.text_bytes(mode), _bytes_node(mode), '""')


def _bytes_node(mode: BinaryMode) -> Node:
    return BYTES if mode == "bytes" else STRING


def scalar_kind(of: ValueType, options: FormatOptions) -> ValueKind | None:
    """Returns the kind of one value, of a column or of an array's elements."""
    if of.labels:
        return _text(named(STRING, _DATA + "Enum", {"allowed": ",".join(of.labels)}))
    match of.oid:
        case 1700:
            return numeric(of.modifier, options.decimal_handling_mode or "precise")
        case 790:
            return money(options.decimal_handling_mode or "precise", options.money_fraction_digits)
        case 17:
            mode = options.binary_handling_mode or "bytes"
            return ValueKind(values.bytea(mode), _bytes_node(mode), '""')
        case 1186 if options.interval_handling_mode == "string":
            return ValueKind(values.interval_iso, named(STRING, _TIME + "Interval"), '"P0Y0M0DT0H0M0S"')
        case 1082 | 1083 | 1114 | 1184:
            return temporal(of.oid, of.modifier, options.time_precision_mode or "adaptive")
        case 1560 | 1562:
            return bits(of.modifier)
        case _ if of.name == "hstore" and options.hstore_handling_mode == "map":
            return ValueKind(values.hstore_map, map_of(STRING, optional(STRING)), "{}")
        case _:
            return _BY_OID.get(of.oid) or _BY_NAME.get(of.name)


def _array_kind(column: Column, element: ValueKind) -> ValueKind:
    read = ArrayEncoder(element.encode, column.delimiter)

    def encode(text: str) -> str:
        flat = text.partition("=")[2] if text.startswith("[") else text  # subscripts are dropped, as pgjdbc does
        if flat.startswith("{{"):
            raise UnconvertibleError("an array of one dimension")
        return read(flat)

    return ValueKind(encode, array_of(element.node), "[]")


# ---- types whose form is an option


def numeric(modifier: int, mode: DecimalMode) -> ValueKind:
    declared = numeric_modifier(modifier)
    if declared is None and mode == "precise":
        node = struct_of([("scale", required(INT32)), ("value", required(BYTES))])
        node = named(node, _DATA + "VariableScaleDecimal", doc="Variable scaled decimal")
        return ValueKind(values.variable_decimal, node, values.variable_decimal("0"))
    precision, scale = declared or (0, 0)
    return _decimal(mode, scale, {"connect.decimal.precision": str(precision)})


def money(mode: DecimalMode, fraction_digits: int) -> ValueKind:
    plain = _decimal(mode, fraction_digits, {})
    return replace(plain, encode=values.money(fraction_digits, plain.encode))


def _decimal(mode: DecimalMode, scale: int, parameters: Mapping[str, str]) -> ValueKind:
    """Returns the kind of numbers with this scale. `parameters`: others of the schema."""
    match mode:
        case "double":
            return ValueKind(values.decimal_double, FLOAT64, "0.0")
        case "string":
            return ValueKind(values.decimal_string, STRING, '""')
        case "precise":
            encode = values.decimal_bytes(scale)
            return ValueKind(
                encode, named(BYTES, _CONNECT + "Decimal", {"scale": str(scale), **parameters}), encode("0")
            )


def bits(modifier: int) -> ValueKind:
    """`modifier` is the length; without one the length is not limited."""
    if modifier == 1:
        return ValueKind(values.bit, BOOLEAN, "false")
    length = modifier if modifier > 0 else _BITS_MAX
    return ValueKind(values.bits, named(BYTES, _DATA + "Bits", {"length": str(length)}), '""')


def temporal(oid: int, modifier: int, mode: TimeMode) -> ValueKind:
    """Returns the kind of date, time, timestamp, and timestamp with time zone, which has one form in all modes."""
    precision = modifier if modifier >= 0 else 6  # digits of the second
    match oid, mode:
        case 1184, _:
            node, zero = named(STRING, _TIME + "ZonedTimestamp"), '"1970-01-01T00:00:00Z"'
            return ValueKind(values.zoned_timestamp(precision), node, zero)
        case 1082, "connect":
            return ValueKind(values.date_number, named(INT32, _CONNECT + "Date"), "0")
        case 1082, "isostring":
            return ValueKind(values.date_iso, named(STRING, _TIME + "IsoDate"), '"1970-01-01Z"')
        case 1082, _:
            return ValueKind(values.date_number, named(INT32, _TIME + "Date"), "0")
        case 1083, "connect":
            return ValueKind(values.time_in(_MS), named(INT32, _CONNECT + "Time"), "0")
        case 1083, "isostring":
            return ValueKind(values.time_iso, named(STRING, _TIME + "IsoTime"), '"00:00:00Z"')
        case 1083, "nanoseconds":
            return ValueKind(values.time_in(_NS), named(INT64, _TIME + "NanoTime"), "0")
        case 1083, "adaptive" if precision <= 3:
            return ValueKind(values.time_in(_MS), named(INT32, _TIME + "Time"), "0")
        case 1083, _:
            return ValueKind(values.time_in(_US), named(INT64, _TIME + "MicroTime"), "0")
        case _, "connect":
            return ValueKind(values.timestamp_in(_MS), named(INT64, _CONNECT + "Timestamp"), "0")
        case _, "isostring":
            return ValueKind(values.timestamp_iso, named(STRING, _TIME + "IsoTimestamp"), '"1970-01-01T00:00:00Z"')
        case _, "nanoseconds":
            return ValueKind(values.timestamp_in(_NS), named(INT64, _TIME + "NanoTimestamp"), "0")
        case _, "adaptive" | "adaptive_time_microseconds" if precision <= 3:
            return ValueKind(values.timestamp_in(_MS), named(INT64, _TIME + "Timestamp"), "0")
        case _:
            return ValueKind(values.timestamp_in(_US), named(INT64, _TIME + "MicroTimestamp"), "0")


_NS, _US, _MS = 1, 1_000, 1_000_000

# The types to which each mode applies; profile `readable` uses a mode's form for them if one was chosen.
FAMILIES: Final[dict[str, Callable[[ValueType], bool]]] = {
    "decimal_handling_mode": lambda of: of.oid in (NUMERIC, MONEY),
    "time_precision_mode": lambda of: of.oid in (DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ),
    "binary_handling_mode": lambda of: of.oid == BYTEA,
    "interval_handling_mode": lambda of: of.oid == INTERVAL,
    "hstore_handling_mode": lambda of: of.name == "hstore",
}

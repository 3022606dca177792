"""Which form Debezium gives each type: values with their schema, option by option."""

import json
from typing import Any

import pytest

from cdc.config.format_options import FormatOptions
from cdc.formats.connect import optional
from cdc.formats.debezium_kinds import kind_of
from cdc.model.errors import MalformedValueError, UnconvertibleError
from cdc.model.events import Column

NUMERIC_12_2 = 786_438


def column(oid: int, modifier: int = -1, name: str = "", **more: Any) -> Column:
    return Column("c", oid, modifier, name, True, base_type_oid=oid, **more)


def form(of: Column, text: str, **options: Any) -> tuple[Any, str | None, Any]:
    """(type, semantic name, value)"""
    kind = kind_of(of, FormatOptions(profile="debezium", **options))
    assert kind is not None
    json.loads(kind.zero)
    return kind.node["type"], kind.node.get("name"), json.loads(kind.encode(text))


TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."


@pytest.mark.parametrize(
    ("of", "text", "expected"),
    [
        (column(16), "t", ("boolean", None, True)),
        (column(1560, 1), "1", ("boolean", None, True)),
        (column(1562, 1), "0", ("boolean", None, False)),
        (column(1560, 2), "11", ("bytes", DATA + "Bits", "Aw==")),
        (column(21), "1", ("int16", None, 1)),
        (column(23), "1", ("int32", None, 1)),
        (column(20), "1", ("int64", None, 1)),
        (column(26), "4000000000", ("int64", None, 4_000_000_000)),
        (column(700), "3.3", ("float", None, 3.3)),
        (column(701), "NaN", ("double", None, "NaN")),
        (column(1042, 8), "abc ", ("string", None, "abc ")),
        (column(25), "x", ("string", None, "x")),
        (column(17), "\\x010203", ("bytes", None, "AQID")),
        (column(3802), '{"a": 1}', ("string", DATA + "Json", '{"a": 1}')),
        (column(142), "<a/>", ("string", DATA + "Xml", "<a/>")),
        (column(2950), "a0eebc99-...", ("string", DATA + "Uuid", "a0eebc99-...")),
        (column(869), "192.168.2.0/12", ("string", None, "192.168.2.0/12")),
        (column(3908), '["2019-03-31 15:30:00",infinity)', ("string", None, '["2019-03-31 15:30:00",infinity)')),
        (column(16_500, type_kind="e", labels=("happy", "sad")), "happy", ("string", None, "happy")),
        (column(16_500, name="public.ltree"), "Top.Science", ("string", DATA + "Ltree", "Top.Science")),
        (column(16_500, name="isbn"), "x", ("string", None, "x")),
        (column(3614), "'a':1", ("string", DATA + "Tsvector", "'a':1")),
        (column(16_500, name="public.vector(2)"), "[1,2]", ("array", DATA + "DoubleVector", [1, 2])),
        (column(16_500, name="halfvec"), "[1]", ("array", DATA + "FloatVector", [1])),
        (column(16_500, name="public.hstore"), '"k"=>"v", "n"=>NULL', ("string", DATA + "Json", '{"k":"v","n":null}')),
        (column(1700, NUMERIC_12_2), "1.10", ("bytes", CONNECT + "Decimal", "bg==")),
        (column(1700), "1.10", ("struct", DATA + "VariableScaleDecimal", {"scale": 1, "value": "Cw=="})),
        (column(790), "$1.10", ("bytes", CONNECT + "Decimal", "bg==")),
        (column(1082), "1970-01-02", ("int32", TIME + "Date", 1)),
        (column(1083), "00:00:01", ("int64", TIME + "MicroTime", 1_000_000)),
        (column(1083, 3), "00:00:01", ("int32", TIME + "Time", 1_000)),
        (column(1114), "1970-01-01 00:00:01", ("int64", TIME + "MicroTimestamp", 1_000_000)),
        (column(1114, 3), "1970-01-01 00:00:01", ("int64", TIME + "Timestamp", 1_000)),
        (column(1184), "1970-01-01 00:00:01+00", ("string", TIME + "ZonedTimestamp", "1970-01-01T00:00:01.000000Z")),
        (column(1184, 0), "1970-01-01 00:00:01+00", ("string", TIME + "ZonedTimestamp", "1970-01-01T00:00:01Z")),
        (column(1266), "11:51:30.123789+00", ("string", TIME + "ZonedTime", "11:51:30.123789Z")),
        (column(1186), "1 year 2 mons 3 days 04:05:06.78", ("int64", TIME + "MicroDuration", 37_091_106_780_000)),
    ],
)  # fmt: skip
def test_debeziums_defaults(of: Column, text: str, expected: tuple[Any, ...]) -> None:
    kind, name, value = form(of, text)
    assert (kind, name if not of.labels else None, value) == expected


def of_fields(name: str, version: int, doc: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": True, "name": name, "version": version, "doc": doc}


def field(name: str, type_: str, *, is_optional: bool = False) -> dict[str, Any]:
    return {"type": type_, "optional": is_optional, "field": name}


GEOMETRY = DATA + "geometry."
POINT = of_fields(
    GEOMETRY + "Point",
    1,
    "Geometry (POINT)",
    *(field(name, "double") for name in "xy"),
    *(field("wkb", "bytes", is_optional=True), field("srid", "int32", is_optional=True)),
)
TEXTS = {"type": "map", "keys": field("", "string"), "values": field("", "string"), "optional": True}
SHAPE = of_fields(
    GEOMETRY + "Geometry",
    2,
    "Geometry",
    *(field("wkb", "bytes"), field("srid", "int32", is_optional=True), {**TEXTS, "field": "extensions"}),
)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (column(600), POINT),
        (column(601), SHAPE),
        (column(16_500, name="public.geometry(Point,4326)"), SHAPE),
        (
            column(16_500, name="geography"),
            of_fields(
                GEOMETRY + "Geography",
                1,
                "Geography",
                *(field("wkb", "bytes"), field("srid", "int32", is_optional=True)),
            ),
        ),
        (column(628), of_fields(GEOMETRY + "Line", 1, "Geometry (LINE)", *(field(name, "double") for name in "abc"))),
        (
            column(718),
            of_fields(
                GEOMETRY + "Circle",
                1,
                "Geometry (CIRCLE)",
                *({**POINT, "optional": False, "field": "center"}, field("radius", "double")),
            ),
        ),
        (
            column(1700),
            of_fields(
                DATA + "VariableScaleDecimal",
                1,
                "Variable scaled decimal",
                *(field("scale", "int32"), field("value", "bytes")),
            ),
        ),
        (
            column(16_500, name="sparsevec(5)"),
            of_fields(
                DATA + "SparseDoubleVector",
                1,
                "Sparse double vector",
                field("dimensions", "int16"),
                {"type": "map", "keys": field("", "int16"), "values": field("", "double"), "optional": False}
                | {"field": "vector"},
            ),
        ),
        (
            column(16_500, name="vector(3)"),
            {"type": "array", "items": field("", "double"), "optional": True, "name": DATA + "DoubleVector"}
            | {"version": 1},
        ),
        (
            column(16_500, name="halfvec(3)"),
            {"type": "array", "items": field("", "float"), "optional": True, "name": DATA + "FloatVector"}
            | {"version": 1},
        ),
    ],
)
def test_schemas_are_debeziums_part_for_part(of: Column, expected: dict[str, Any]) -> None:
    """As the connector 3.7.0.Final writes them; those of PostGIS from its code."""
    kind = kind_of(of, FormatOptions(profile="debezium"))
    assert kind is not None
    assert json.dumps(optional(kind.node)) == json.dumps(expected).replace(', "field": ""', "")


TIME_3, STAMP = column(1083), column(1114, 3)
DAY, CLOCK, AT = "1970-01-02", "00:00:01.5", "1970-01-01 00:00:01.5"


@pytest.mark.parametrize(
    ("mode", "date", "time", "timestamp_3"),
    [
        (
            "adaptive",
            ("int32", TIME + "Date", 1),
            ("int64", TIME + "MicroTime", 1_500_000),
            ("int64", TIME + "Timestamp", 1500),
        ),
        (
            "adaptive_time_microseconds",
            ("int32", TIME + "Date", 1),
            ("int64", TIME + "MicroTime", 1_500_000),
            ("int64", TIME + "Timestamp", 1500),
        ),
        (
            "connect",
            ("int32", CONNECT + "Date", 1),
            ("int32", CONNECT + "Time", 1500),
            ("int64", CONNECT + "Timestamp", 1500),
        ),
        (
            "isostring",
            ("string", TIME + "IsoDate", "1970-01-02Z"),
            ("string", TIME + "IsoTime", "00:00:01.5Z"),
            ("string", TIME + "IsoTimestamp", "1970-01-01T00:00:01.5Z"),
        ),
        (
            "microseconds",
            ("int32", TIME + "Date", 1),
            ("int64", TIME + "MicroTime", 1_500_000),
            ("int64", TIME + "MicroTimestamp", 1_500_000),
        ),
        (
            "nanoseconds",
            ("int32", TIME + "Date", 1),
            ("int64", TIME + "NanoTime", 1_500_000_000),
            ("int64", TIME + "NanoTimestamp", 1_500_000_000),
        ),
    ],
)  # fmt: skip
def test_time_precision_mode(mode: str, date: object, time: object, timestamp_3: object) -> None:
    assert form(column(1082), DAY, time_precision_mode=mode) == date
    assert form(column(1083), CLOCK, time_precision_mode=mode) == time
    assert form(column(1114, 3), AT, time_precision_mode=mode) == timestamp_3
    assert form(column(1184, 3), AT + "+00", time_precision_mode=mode)[2] == "1970-01-01T00:00:01.500Z"


def test_adaptive_time_microseconds_is_about_short_times() -> None:
    assert form(column(1083, 3), CLOCK, time_precision_mode="adaptive_time_microseconds")[2] == 1_500_000


@pytest.mark.parametrize(
    ("mode", "numeric", "free", "money"),
    [
        ("double", ("double", None, 1.1), ("double", None, 1.1), ("double", None, -1234.5)),
        ("string", ("string", None, "1.10"), ("string", None, "1.10"), ("string", None, "-1234.50")),
    ],
)
def test_decimal_handling_mode(mode: str, numeric: object, free: object, money: object) -> None:
    assert form(column(1700, NUMERIC_12_2), "1.10", decimal_handling_mode=mode) == numeric
    assert form(column(1700), "1.10", decimal_handling_mode=mode) == free
    assert form(column(790), "-$1,234.50", decimal_handling_mode=mode) == money


def test_a_decimals_schema_has_scale_and_precision() -> None:
    kind = kind_of(column(1700, NUMERIC_12_2), FormatOptions(profile="debezium"))
    assert kind is not None
    assert kind.node["parameters"] == {"scale": "2", "connect.decimal.precision": "12"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("bytes", ("bytes", None, "+/8=")),
        ("base64", ("string", None, "+/8=")),
        ("base64-url-safe", ("string", None, "-_8=")),
        ("hex", ("string", None, "fbff")),
    ],
)
def test_binary_handling_mode(mode: str, expected: object) -> None:
    assert form(column(17), "\\xfbff", binary_handling_mode=mode) == expected


def test_interval_and_hstore_handling_modes() -> None:
    interval = form(column(1186), "1 day", interval_handling_mode="string")
    assert interval == ("string", TIME + "Interval", "P0Y0M1DT0H0M0S")
    hstore = form(column(16_500, name="hstore"), '"k"=>"v"', hstore_handling_mode="map")
    assert hstore == ("map", None, {"k": "v"})


def test_an_enums_schema_has_its_labels() -> None:
    kind = kind_of(column(16_500, type_kind="e", labels=("happy", "sad")), FormatOptions(profile="debezium"))
    assert kind is not None
    assert (kind.node["name"], kind.node["parameters"]) == (DATA + "Enum", {"allowed": "happy,sad"})


@pytest.mark.parametrize(
    ("of", "text", "items", "value"),
    [
        (column(1007, element_oid=23), "{1,NULL}", "int32", [1, None]),
        (column(1231, NUMERIC_12_2, element_oid=1700), "{1.10}", "bytes", ["bg=="]),
        (column(1115, element_oid=1114), '{"1970-01-01 00:00:01"}', "int64", [1_000_000]),
        (column(1009, element_oid=25), "[0:1]={a,b}", "string", ["a", "b"]),  # as pgjdbc, without its subscripts
        (column(16_501, element_oid=16_500, labels=("a",), name="mood[]"), "{a}", "string", ["a"]),
        (column(16_501, element_oid=16_500, name="public.hstore[]"), '{"\\"k\\"=>NULL"}', "string", ['{"k":null}']),
    ],
)
def test_arrays_are_of_their_elements_form(of: Column, text: str, items: str, value: object) -> None:
    kind = kind_of(of, FormatOptions(profile="debezium"))
    assert kind is not None
    assert (kind.node["type"], kind.node["items"]["type"], kind.node["items"]["optional"]) == ("array", items, True)
    assert json.loads(kind.encode(text)) == value


def test_an_array_of_dimensions_has_no_place() -> None:
    kind = kind_of(column(1007, element_oid=23), FormatOptions(profile="debezium"))
    assert kind is not None
    with pytest.raises(UnconvertibleError):
        kind.encode("{{1,2},{3,4}}")
    with pytest.raises(MalformedValueError):
        kind.encode("[1:2]{a,b}")


UNKNOWN = [
    *(column(oid) for oid in (3615, 3220, 2970, 5038, 28, 27, 29, 5069, 4072, 4451, 2205, 2206, 22, 30)),
    column(16_500, name="pair"),  # a composite
    column(16_500, name="cube"),
]
UNKNOWN_ARRAYS = [
    column(16_501, element_oid=23, name="positive[]"),  # of a domain
    column(16_501, element_oid=600, name="places[]"),
    column(16_041, element_oid=16_500, name="pair[]"),
    column(3645, element_oid=3615),
]


@pytest.mark.parametrize("of", UNKNOWN, ids=str)
def test_unknown_types_are_left_out_unless_they_are_asked_for(of: Column) -> None:
    assert kind_of(of, FormatOptions(profile="debezium")) is None
    assert form(of, "x/y", include_unknown_datatypes=True) == ("bytes", None, "eC95")
    assert form(of, "x", include_unknown_datatypes=True, binary_handling_mode="hex") == ("string", None, "78")


@pytest.mark.parametrize("of", UNKNOWN_ARRAYS, ids=str)
def test_of_an_array_it_is_the_elements_that_are_unknown(of: Column) -> None:
    assert kind_of(of, FormatOptions(profile="debezium")) is None
    kind = kind_of(of, FormatOptions(profile="debezium", include_unknown_datatypes=True))
    assert kind is not None
    assert kind.node == {"type": "array", "items": {"type": "bytes", "optional": True}}
    assert json.loads(kind.encode('{x/y,NULL,"a b"}')) == ["eC95", None, "YSBi"]
    assert form(of, "{x}", include_unknown_datatypes=True, binary_handling_mode="hex") == ("array", None, ["78"])


@pytest.mark.parametrize("element", [790, 19, 1186, 1562, 1560, 142, 600, 1790])
def test_some_arrays_are_never_there(element: int) -> None:
    assert kind_of(column(1000, element_oid=element), FormatOptions(include_unknown_datatypes=True)) is None

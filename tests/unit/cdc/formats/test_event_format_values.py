"""Debezium's forms of values, line by line: what PostgreSQL prints, the field's schema, the literal JSON in a record.

Numbers are sections of the format's description: types, numerics, times, special times, arrays, large values, masks.
Each goes through a record of the stream and one of COPY, in profile `debezium`; the other file has the envelope.
"""

import json
from typing import Any, Final

import pytest

from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.formats.profiles import UnconvertibleWarning
from cdc.formats.records import Draft, EnvelopeContext, TableEncoder
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Column
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from tests.support import wire

OID: Final = 16385
DATA, TIME, CONNECT = "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data."
GEOMETRY = DATA + "geometry."
NUMERIC_5_2 = (5 << 16 | 2) + 4  # pg_attribute.atttypmod


def column(oid: int, modifier: int = -1, name: str = "", **more: Any) -> Column:
    return Column("c", oid, modifier, name, more.pop("nullable", True), base_type_oid=oid, **more)


def encoder(of: Column, identity: str = "d", **options: Any) -> TableEncoder:
    options = {"profile": "debezium"} | options
    context = EnvelopeContext("srv", "shop", 1, "0.1.0", FormatOptions(**options))
    columns = (Column("id", 23, -1, "integer", False), of)
    made = TableEncoder(*wire.schema_and_relation(columns, ["id"], identity=identity), context)
    made.start_transaction(24_026_100, 0, 560, None)
    return made


def literal(of: Column, text: str | None, **options: Any) -> str | None:
    """The column's JSON in a record; None: it is not there. Stream and COPY give the same."""
    made = encoder(of, **options)
    values: list[TupleValue] = [b"1", NULL if text is None else text.encode()]
    [(_, streamed, _)] = made.encode(wire.insert(OID, values), 0, 24_026_000, 0, 1, 0)
    made.start_snapshot(24_026_000, 0)
    _, copied, _ = made.copy_row(wire.copy_line(["1", text]), 24_026_000, 0, 1, 0)
    found = {record.decode().partition('"after":{"id":1')[2].partition('},"source"')[0] for record in (streamed, copied)
             if isinstance(record, bytes)}  # fmt: skip
    assert len(found) == 1
    [row] = found
    return row.removeprefix(',"c":') or None


def schema(of: Column, **options: Any) -> tuple[str, str | None]:
    """(type, semantic name) of the column's field."""
    made = encoder(of, schemas_enable=True, **options)
    [(_, record, _)] = made.encode(wire.insert(OID, [b"1", NULL]), 0, 24_026_000, 0, 1, 0)
    after = json.loads(record if isinstance(record, bytes) else b"")["schema"]["fields"][1]
    [node] = [field for field in after["fields"] if field["field"] == "c"]
    assert node["optional"] is True
    return node["type"], node.get("name")


# ---- 2.1 types


@pytest.mark.parametrize(
    ("of", "text", "field", "expected"),
    [
        (column(16), "t", ("boolean", None), "true"),
        (column(1560, 1), "1", ("boolean", None), "true"),
        (column(1562, 1), "0", ("boolean", None), "false"),
        (column(1560, 2), "11", ("bytes", DATA + "Bits"), '"Aw=="'),
        (column(1560, 2), "00", ("bytes", DATA + "Bits"), '""'),
        (column(1562), "000000110000001000000001", ("bytes", DATA + "Bits"), '"AQID"'),
        (column(21), "1", ("int16", None), "1"),
        (column(23), "-1", ("int32", None), "-1"),
        (column(20), "9223372036854775807", ("int64", None), "9223372036854775807"),
        (column(26), "4000000000", ("int64", None), "4000000000"),
        (column(700), "3.3", ("float", None), "3.3"),
        (column(700), "-Infinity", ("float", None), '"-Infinity"'),
        (column(701), "NaN", ("double", None), '"NaN"'),
        (column(1042, 8), "abc ", ("string", None), '"abc "'),
        (column(1043), "x", ("string", None), '"x"'),
        (column(25), "größe", ("string", None), '"größe"'),
        (column(19), "x", ("string", None), '"x"'),
        (column(16_500, name="citext"), "X", ("string", None), '"X"'),
        (column(17), r"\x010203", ("bytes", None), '"AQID"'),
        (column(114), '{"a": 1}', ("string", DATA + "Json"), '"{\\"a\\": 1}"'),
        (column(3802), "[1, 2]", ("string", DATA + "Json"), '"[1, 2]"'),
        (column(142), "<a/>", ("string", DATA + "Xml"), '"<a/>"'),
        (column(2950), "0b7c…", ("string", DATA + "Uuid"), '"0b7c…"'),
        (column(869), "192.168.2.0/12", ("string", None), '"192.168.2.0/12"'),
        (column(650), "192.168.0.0/16", ("string", None), '"192.168.0.0/16"'),
        (column(829), "08:00:2b:01:02:03", ("string", None), '"08:00:2b:01:02:03"'),
        (column(774), "08:00:2b:01:02:03:04:05", ("string", None), '"08:00:2b:01:02:03:04:05"'),
        (column(3904), "[1,5)", ("string", None), '"[1,5)"'),
        (
            column(3908),
            '["2019-03-31 15:30:00",infinity)',
            ("string", None),
            '"[\\"2019-03-31 15:30:00\\",infinity)"',
        ),
        (column(16_500, type_kind="e", labels=("happy", "sad")), "happy", ("string", DATA + "Enum"), '"happy"'),
        (column(16_500, name="ltree"), "Top.Science", ("string", DATA + "Ltree"), '"Top.Science"'),
        (column(16_500, name="isbn"), "978-0-393-04002-9", ("string", None), '"978-0-393-04002-9"'),
        (column(3614), "'a':1", ("string", DATA + "Tsvector"), "\"'a':1\""),
        (
            column(16_500, name="hstore"),
            '"k"=>"v", "n"=>NULL',
            ("string", DATA + "Json"),
            '"{\\"k\\":\\"v\\",\\"n\\":null}"',
        ),
        (column(600), "(1,2)", ("struct", GEOMETRY + "Point"), None),
        (column(603), "(1,1),(0,0)", ("struct", GEOMETRY + "Geometry"), None),
        (column(718), "<(1,2),3>", ("struct", GEOMETRY + "Circle"), None),
        (column(628), "{1,2,3}", ("struct", GEOMETRY + "Line"), '{"a":1,"b":2,"c":3}'),
        (column(16_500, name="vector(2)"), "[1,2]", ("array", DATA + "DoubleVector"), "[1,2]"),
        (column(16_500, name="halfvec(2)"), "[1,2]", ("array", DATA + "FloatVector"), "[1,2]"),
        (
            column(16_500, name="sparsevec(5)"),
            "{1:1.5}/5",
            ("struct", DATA + "SparseDoubleVector"),
            '{"dimensions":5,"vector":[[1,1.5]]}',
        ),
        # 2.2
        (column(1700, NUMERIC_5_2), "1.10", ("bytes", CONNECT + "Decimal"), '"bg=="'),
        (column(1700), "1.10", ("struct", DATA + "VariableScaleDecimal"), '{"scale":1,"value":"Cw=="}'),
        (column(790), "$1.10", ("bytes", CONNECT + "Decimal"), '"bg=="'),
        # 2.3
        (column(1082), "2017-09-15", ("int32", TIME + "Date"), "17424"),
        (column(1083, 3), "13:51:30.123", ("int32", TIME + "Time"), "49890123"),
        (column(1083), "13:51:30.123456", ("int64", TIME + "MicroTime"), "49890123456"),
        (column(1114, 3), "2016-11-04 13:51:30.123", ("int64", TIME + "Timestamp"), "1478267490123"),
        (column(1114), "2016-11-04 13:51:30.123456", ("int64", TIME + "MicroTimestamp"), "1478267490123456"),
        (
            column(1184),
            "2016-11-04 11:51:30.123456+00",
            ("string", TIME + "ZonedTimestamp"),
            '"2016-11-04T11:51:30.123456Z"',
        ),
        (column(1266), "11:51:30.123789+00", ("string", TIME + "ZonedTime"), '"11:51:30.123789Z"'),
        (column(1186), "1 year 2 mons 3 days 04:05:06.78", ("int64", TIME + "MicroDuration"), "37091106780000"),
        # 2.4
        (column(1083), "24:00:00", ("int64", TIME + "MicroTime"), "86400000000"),
        (column(1266), "24:00:00+00", ("string", TIME + "ZonedTime"), '"24:00:00Z"'),
        (column(1114), "infinity", ("int64", TIME + "MicroTimestamp"), "9223372036854775807"),
        (column(1114), "-infinity", ("int64", TIME + "MicroTimestamp"), "-9223372036854775808"),
        (column(1184), "infinity", ("string", TIME + "ZonedTimestamp"), '"infinity"'),
        (column(1082), "infinity", ("int32", TIME + "Date"), "2146033979"),
        (column(1082), "-infinity", ("int32", TIME + "Date"), "-2147472691"),
        (column(1114), "4713-12-31 23:59:59.999999 BC", ("int64", TIME + "MicroTimestamp"), "-210831897600000001"),
        (
            column(1184),
            "4714-12-31 23:59:59.999999+00 BC",
            ("string", TIME + "ZonedTimestamp"),
            '"-4713-12-31T23:59:59.999999Z"',
        ),
        (
            column(1184),
            "21016-11-04 06:51:30.123456+00",
            ("string", TIME + "ZonedTimestamp"),
            '"+21016-11-04T06:51:30.123456Z"',
        ),
        # 2.5
        (column(1007, element_oid=23), "{1,NULL}", ("array", None), "[1,null]"),
        (column(1009, element_oid=25), '{a,"b c"}', ("array", None), '["a","b c"]'),
        (column(1182, element_oid=1082), "{1970-01-02}", ("array", None), "[1]"),
        (column(1231, NUMERIC_5_2, element_oid=1700), "{1.10}", ("array", None), '["bg=="]'),
    ],
    ids=str,
)
def test_2_1_to_2_5_the_field_and_its_value(
    of: Column, text: str, field: tuple[str, str], expected: str | None
) -> None:
    assert schema(of) == field
    found = literal(of, text)
    assert found is not None
    # Geometry is well-known binary, whose literals are in test_debezium_geometry.py.
    assert found == expected if expected is not None else found.startswith("{")
    assert literal(of, None) == "null"


@pytest.mark.parametrize(
    ("of", "text", "option", "expected"),
    [
        (column(1700, NUMERIC_5_2), "1.10", {"decimal_handling_mode": "double"}, "1.1"),
        (column(1700, NUMERIC_5_2), "1.10", {"decimal_handling_mode": "string"}, '"1.10"'),
        (column(1700), "NaN", {"decimal_handling_mode": "double"}, '"NaN"'),
        (column(1700), "NaN", {"decimal_handling_mode": "string"}, '"NAN"'),
        (column(1700), "Infinity", {"decimal_handling_mode": "string"}, '"POSITIVE_INFINITY"'),
        (column(1700), "-Infinity", {"decimal_handling_mode": "string"}, '"NEGATIVE_INFINITY"'),
        (column(790), "($1,234.11)", {"decimal_handling_mode": "string"}, '"-1234.11"'),
        (column(1082), "2017-09-15", {"time_precision_mode": "connect"}, "17424"),
        (column(1082), "2017-09-15", {"time_precision_mode": "isostring"}, '"2017-09-15Z"'),
        (column(1083, 3), "00:00:01.5", {"time_precision_mode": "adaptive_time_microseconds"}, "1500000"),
        (column(1083), "00:00:01.5", {"time_precision_mode": "connect"}, "1500"),
        (column(1083), "00:00:01.5", {"time_precision_mode": "nanoseconds"}, "1500000000"),
        (column(1114, 3), "1970-01-01 00:00:01.5", {"time_precision_mode": "microseconds"}, "1500000"),
        (column(1114), "1970-01-01 00:00:01.5", {"time_precision_mode": "connect"}, "1500"),
        (column(1114), "1970-01-01 00:00:01.5", {"time_precision_mode": "isostring"}, '"1970-01-01T00:00:01.5Z"'),
        (column(1114), "infinity", {"time_precision_mode": "connect"}, "9223372036825200000"),
        (column(1114), "infinity", {"time_precision_mode": "nanoseconds"}, "9223372036854775807"),
        (column(1114), "infinity", {"time_precision_mode": "isostring"}, '"+292278994-08-16T23:00:00Z"'),
        (column(1186), "1 year 2 mons 3 days 04:05:06.78", {"interval_handling_mode": "string"},
         '"P1Y2M3DT4H5M6.78S"'),
        (column(17), r"\xfbff", {"binary_handling_mode": "base64"}, '"+/8="'),
        (column(17), r"\xfbff", {"binary_handling_mode": "base64-url-safe"}, '"-_8="'),
        (column(17), r"\x010203", {"binary_handling_mode": "hex"}, '"010203"'),
        (column(16_500, name="hstore"), '"k"=>NULL', {"hstore_handling_mode": "map"}, '{"k":null}'),
        (column(3220), "0/16", {"include_unknown_datatypes": True, "binary_handling_mode": "hex"}, '"302f3136"'),
    ],
    ids=str,
)  # fmt: skip
def test_2_1_to_2_4_modes(of: Column, text: str, option: dict[str, Any], expected: str) -> None:
    assert literal(of, text, **option) == expected


@pytest.mark.parametrize(
    ("oid", "text", "microseconds", "nanoseconds", "isostring"),
    [
        (1082, "4713-11-24 BC", "-2440222", "-2440222", '"-4712-11-24Z"'),  # PostgreSQL's first and last
        (1082, "5874897-12-31", "2145042905", "2145042905", '"+5874897-12-31Z"'),
        (1082, "infinity", "2146033979", "2146033979", '"+5877611-06-21Z"'),
        (1082, "-infinity", "-2147472691", "-2147472691", '"-5877611-06-22Z"'),
        (1083, "00:00:00", "0", "0", '"00:00:00Z"'),
        (1083, "23:59:59.999999", "86399999999", "86399999999000", '"23:59:59.999999Z"'),
        (1083, "24:00:00", "86400000000", "86400000000000", '"24:00:00Z"'),
        (1114, "0044-03-15 12:00:00.5 BC", "-63517780799500000", None, '"-0043-03-15T12:00:00.5Z"'),
        (1114, "4714-11-24 00:00:00 BC", "-210866803200000000", None, '"-4713-11-24T00:00:00Z"'),
        (1114, "294247-01-10 04:00:54.775807", "9223372036854775807", None, '"+294247-01-10T04:00:54.775807Z"'),
        (1114, "294247-01-10 04:00:54.775808", None, None, '"+294247-01-10T04:00:54.775808Z"'),
        (1114, "1677-09-21 00:12:43.145225", "-9223372036854775", "-9223372036854775000",
         '"1677-09-21T00:12:43.145225Z"'),
        (1114, "1677-09-21 00:12:43.145224", "-9223372036854776", None, '"1677-09-21T00:12:43.145224Z"'),
        (1114, "2262-04-11 23:47:16.854775", "9223372036854775", "9223372036854775000",
         '"2262-04-11T23:47:16.854775Z"'),
        (1114, "2262-04-11 23:47:16.854776", "9223372036854776", None, '"2262-04-11T23:47:16.854776Z"'),
        (1114, "infinity", "9223372036854775807", "9223372036854775807", '"+292278994-08-16T23:00:00Z"'),
        (1114, "-infinity", "-9223372036854775808", "-9223372036854775808", '"-292275055-05-16T23:00:00Z"'),
    ],
)  # fmt: skip
def test_2_3_and_2_4_the_ends_of_each_precision(
    oid: int, text: str, microseconds: str | None, nanoseconds: str | None, isostring: str
) -> None:
    """None: the form has no place for it."""
    expected = {"microseconds": microseconds, "nanoseconds": nanoseconds, "isostring": isostring}
    for mode, form in expected.items():
        required, chosen = column(oid, nullable=False), {"time_precision_mode": mode}
        if form is not None:
            assert [literal(required, text, profile=p, **chosen) for p in ("debezium", "readable")] == [form, form]
            continue
        with pytest.warns(UnconvertibleWarning, match="64 bits since 1970"):
            assert literal(column(oid), text, **chosen) == "null"
        for of, profile in ((required, "debezium"), (column(oid), "readable")):
            with pytest.raises(UnsupportedChangeError, match=r"customers at 0/16E9BF4#0, column c: .* 64 bits since"):
                literal(of, text, profile=profile, **chosen)


@pytest.mark.parametrize("oid", [3615, 3220, 2970, 5038, 28, 4451])  # tsquery, pg_lsn, snapshots, xid, a multirange
def test_2_1_types_that_debezium_does_not_know_are_not_there(oid: int) -> None:
    assert literal(column(oid), "x") is None


@pytest.mark.parametrize("element", [790, 19, 1186, 1562, 142, 600, 1790])
def test_2_5_arrays_that_debezium_has_not_are_not_there(element: int) -> None:
    assert literal(column(1000, element_oid=element), "{}", include_unknown_datatypes=True) is None


# ---- 2.6 large values that an update left alone


def test_2_6_an_unchanged_value_comes_from_the_old_row_under_identity_full() -> None:
    message = wire.update(OID, [b"1", UNCHANGED], [b"1", b"large"], b"O")
    [(_, record, _)] = encoder(column(25), "f").encode(message, 0, 24_026_000, 0, 1, 0)
    assert isinstance(record, bytes) and b'"after":{"id":1,"c":"large"}' in record


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        *((column(oid), '"__debezium_unavailable_value"') for oid in (25, 1043, 1042, 114, 3802, 142)),
        (column(16_500, name="citext"), '"__debezium_unavailable_value"'),
        (column(17), '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="'),
        (column(1009, element_oid=25), '["__debezium_unavailable_value"]'),
        (column(3807, element_oid=3802), '["__debezium_unavailable_value"]'),
        (column(1001, element_oid=17), '["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]'),
        (column(1007, element_oid=23), "[" + ",".join(str(byte) for byte in b"__debezium_unavailable_value") + "]"),
        (column(1016, element_oid=20), "[" + ",".join(str(byte) for byte in b"__debezium_unavailable_value") + "]"),
        (
            column(16_500, name="hstore"),
            '"{\\"__debezium_unavailable_value\\":\\"__debezium_unavailable_value\\"}"',
        ),
        (column(1700), "null"),
        (column(1231, element_oid=1700), "null"),
        (column(25, nullable=False), '"__debezium_unavailable_value"'),
    ],
    ids=str,
)
def test_2_6_a_value_that_can_not_be_read_either_is_the_placeholder(of: Column, expected: str) -> None:
    made = encoder(of)
    [(key, hole, _)] = made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, 24_026_000, 0, 1, 0)
    assert key == b'{"id":1}'
    assert isinstance(hole, Draft)
    record = hole.without_holes()
    assert f'{{"before":null,"after":{{"id":1,"c":{expected}}},"source"'.encode() in record
    # Which tells null from null.
    assert b'"schema_version":1,"unchanged":["c"]},' in record


def test_2_6_it_differs_in_being_filled_where_it_can_be_read() -> None:
    made = encoder(column(17, nullable=False))
    [(_, hole, _)] = made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, 24_026_000, 0, 1, 0)
    assert isinstance(hole, Draft)
    record = hole.finished(("1", hole.encoded("c", rb"\x010203")), [1])
    assert b'"after":{"id":1,"c":"AQID"},"source"' in record
    assert b'"schema_version":1,"filled":["c"]},' in record


@pytest.mark.parametrize(
    ("chosen", "of", "expected"),
    [
        ("<ë>", column(25), '"<ë>"'),
        ("hex:3c3e", column(25), '"<>"'),
        ("hex:ff00", column(17), '"/wA="'),
        ("hex:ff00", column(25), '"�\\u0000"'),  # as Java reads bytes that are not UTF-8
        ("hex:ff00", column(1007, element_oid=23), "[255,0]"),
        ("", column(25), '""'),
    ],
)
def test_2_6_the_placeholder_can_be_chosen_as_text_or_bytes(chosen: str, of: Column, expected: str) -> None:
    made = encoder(of, unavailable_value_placeholder=chosen)
    [(_, hole, _)] = made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, 24_026_000, 0, 1, 0)
    assert isinstance(hole, Draft) and f'"after":{{"id":1,"c":{expected}}},"source"'.encode() in hole.without_holes()


# ---- 2.7 what is null or zero


def test_2_7_a_value_without_a_place_is_null_with_a_warning() -> None:
    with pytest.warns(UnconvertibleWarning, match="published as null"):
        assert literal(column(1700, NUMERIC_5_2), "NaN") == "null"
    assert literal(column(1700, NUMERIC_5_2), "NaN", event_converting_failure_handling_mode="skip") == "null"


def test_2_7_where_null_is_not_allowed_it_differs_and_stops() -> None:
    with pytest.raises(UnsupportedChangeError, match="column c"):
        literal(column(1700, NUMERIC_5_2, nullable=False), "NaN")


@pytest.mark.parametrize(
    ("of", "zero"),
    [
        (column(23, nullable=False), "0"),
        (column(25, nullable=False), '""'),
        (column(16, nullable=False), "false"),
        (column(17, nullable=False), '""'),
        (column(1082, nullable=False), "0"),
        (column(25), "null"),
    ],
    ids=str,
)
def test_2_7_what_is_not_known_of_an_old_row_is_null_or_a_zero(of: Column, zero: str) -> None:
    [(_, record, _), _] = encoder(of).encode(wire.delete(OID, [b"1", NULL]), 0, 24_026_000, 0, 1, 0)
    assert isinstance(record, bytes) and f'{{"before":{{"id":1,"c":{zero}}},"after":null'.encode() in record


# ---- 5.3 masks: a field says that it is masked


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(wire.CUSTOMERS, "c", "truncate", 3), '"grö"'),
        (Mask(wire.CUSTOMERS, "c", "asterisks", 5), '"*****"'),
        (Mask(wire.CUSTOMERS, "c", "asterisks", 0), '""'),
        (
            Mask(wire.CUSTOMERS, "c", "hash", key=b"0123456789abcdef"),
            '"8f424a2ebf0eb12e1d7777033fa2b46aef30408658ef79aa37b17f6b89e2e96c"',
        ),
    ],
    ids=lambda value: value.action if isinstance(value, Mask) else "",
)
def test_5_3_masks_the_hash_differs_in_being_keyed(mask: Mask, expected: str) -> None:
    assert literal(column(25), "größe", masks=(mask,)) == expected

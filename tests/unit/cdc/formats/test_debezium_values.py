"""Each of Debezium's forms, value by value."""

import base64
import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.formats import debezium_values as values
from cdc.model.errors import MalformedValueError, UnconvertibleError
from cdc.pgoutput.values import Encoder, quote

MS, US, NS = 1_000_000, 1_000, 1
money_string = values.money(2, values.decimal_string)


@pytest.mark.parametrize(
    ("encode", "text", "expected"),
    [
        (values.decimal_bytes(2), "1.10", '"bg=="'),  # 110
        (values.decimal_bytes(2), "-1.28", '"gA=="'),  # -128 needs one byte
        (values.decimal_bytes(2), "1.28", '"AIA="'),  # 128 needs two
        (values.decimal_bytes(0), "0", '"AA=="'),
        (values.decimal_bytes(-2), "-12300", '"hQ=="'),  # -123
        (values.decimal_bytes(5), "0.00999", '"A+c="'),
        (values.variable_decimal, "1.10", '{"scale":1,"value":"Cw=="}'),
        (values.variable_decimal, "100", '{"scale":0,"value":"ZA=="}'),
        (values.variable_decimal, "0.00", '{"scale":0,"value":"AA=="}'),
        (values.variable_decimal, "-0.001", '{"scale":3,"value":"/w=="}'),
        (values.decimal_double, "1.10", "1.1"),
        (values.decimal_double, "NaN", '"NaN"'),
        (values.decimal_double, "-Infinity", '"-Infinity"'),
        (values.decimal_double, "9" * 400, '"Infinity"'),
        (values.decimal_string, "1.10", '"1.10"'),
        (values.decimal_string, "NaN", '"NAN"'),
        (values.decimal_string, "Infinity", '"POSITIVE_INFINITY"'),
        (values.decimal_string, "-Infinity", '"NEGATIVE_INFINITY"'),
        (money_string, "-$1,234.50", '"-1234.50"'),
        (money_string, "($1,234.11)", '"-1234.11"'),
        (money_string, "1.234,50 €", '"1234.50"'),
        (money_string, "$0.05", '"0.05"'),
        (money_string, "¥1,234", '"1234"'),  # a locale without fractions
        (values.money(2, values.decimal_bytes(2)), "-$1,234.50", '"/h3G"'),
        (values.money(0, values.decimal_string), "¥1,234", '"1234"'),
        (values.bit, "1", "true"),
        (values.bits, "11", '"Aw=="'),  # [3]
        (values.bits, "00", '""'),
        (values.bits, "", '""'),
        (values.bits, "000000110000001000000001", '"AQID"'),  # [1, 2, 3]
        (values.bytea("bytes"), "\\x010203", '"AQID"'),
        (values.bytea("base64"), "\\xfbff", '"+/8="'),
        (values.bytea("base64-url-safe"), "\\xfbff", '"-_8="'),
        (values.bytea("hex"), "\\x0102FF", '"0102ff"'),
        (values.text_bytes("hex"), "0/16", '"302f3136"'),
        (values.text_bytes("bytes"), "Ã«", '"w6s="'),  # the latin-1 view of ë
        (values.date_number, "1970-01-02", "1"),
        (values.date_number, "infinity", "2146033979"),
        (values.date_number, "-infinity", "-2147472691"),
        (values.date_iso, "2017-09-15", '"2017-09-15Z"'),
        (values.date_iso, "0044-03-15 BC", '"-0043-03-15Z"'),
        (values.time_in(MS), "13:51:30.123", "49890123"),
        (values.time_in(US), "24:00:00", "86400000000"),
        (values.time_in(NS), "00:00:00.000001", "1000"),
        (values.time_iso, "13:51:30.1", '"13:51:30.1Z"'),
        (values.timestamp_in(MS), "2016-11-04 13:51:30.123456", "1478267490123"),
        (values.timestamp_in(US), "2016-11-04 13:51:30.123456", "1478267490123456"),
        (values.timestamp_in(NS), "2016-11-04 13:51:30.123456", "1478267490123456000"),
        (values.timestamp_in(MS), "1969-12-31 23:59:59.9999", "-1"),
        (values.timestamp_in(US), "4713-12-31 23:59:59.999999 BC", "-210831897600000001"),
        (values.timestamp_in(MS), "infinity", "9223372036825200000"),
        (values.timestamp_in(MS), "-infinity", "-9223372036832400000"),
        (values.timestamp_in(US), "infinity", "9223372036854775807"),
        (values.timestamp_in(US), "-infinity", "-9223372036854775808"),
        (values.timestamp_in(NS), "infinity", "9223372036854775807"),
        (values.timestamp_in(NS), "-infinity", "-9223372036854775808"),
        (values.timestamp_iso, "2017-09-15 12:00:00", '"2017-09-15T12:00:00Z"'),
        (values.timestamp_iso, "infinity", '"+292278994-08-16T23:00:00Z"'),
        (values.timestamp_iso, "-infinity", '"-292275055-05-16T23:00:00Z"'),
        (values.zoned_timestamp(6), "2016-11-04 11:51:30.123456+00", '"2016-11-04T11:51:30.123456Z"'),
        (values.zoned_timestamp(6), "2016-11-04 11:51:30+00", '"2016-11-04T11:51:30.000000Z"'),
        (values.zoned_timestamp(3), "2016-11-04 11:51:30.12+00", '"2016-11-04T11:51:30.120Z"'),
        (values.zoned_timestamp(0), "2016-11-04 11:51:30+00", '"2016-11-04T11:51:30Z"'),
        (values.zoned_timestamp(6), "infinity", '"infinity"'),
        (values.zoned_timestamp(6), "4714-12-31 23:59:59.999999+00 BC", '"-4713-12-31T23:59:59.999999Z"'),
        (values.zoned_timestamp(6), "21016-11-04 06:51:30.123456+00", '"+21016-11-04T06:51:30.123456Z"'),
        (values.zoned_time, "11:51:30.123789+00", '"11:51:30.123789Z"'),
        (values.zoned_time, "24:00:00+00", '"24:00:00Z"'),
        (values.interval_us, "1 year 2 mons 3 days 04:05:06.78", "37091106780000"),
        (values.interval_us, "-00:00:00.000001", "-1"),
        (values.interval_iso, "1 year 2 mons 3 days 04:05:06.78", '"P1Y2M3DT4H5M6.78S"'),
        (values.interval_iso, "-1 years -00:00:10", '"P-1Y0M0DT0H0M-10S"'),
        (values.interval_iso, "00:00:00", '"P0Y0M0DT0H0M0S"'),
        (values.hstore_map, "", "{}"),
        (values.hstore_map, r'"k"=>"v", "n"=>NULL, "a\"b"=>"c\\d"', r'{"k":"v","n":null,"a\"b":"c\\d"}'),
        (values.hstore_json, '"k"=>"v", "n"=>NULL', r'"{\"k\":\"v\",\"n\":null}"'),
        (values.vector, "[1,2.5,-3]", "[1,2.5,-3]"),
        (values.sparse_vector, "{1:1.5,3:-2}/5", '{"dimensions":5,"vector":[[1,1.5],[3,-2]]}'),
        (values.sparse_vector, "{}/5", '{"dimensions":5,"vector":[]}'),
    ],
)
def test_values(encode: Encoder, text: str, expected: str) -> None:
    assert encode(text) == expected
    json.loads(expected)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_decimals_read_back(number: Decimal) -> None:
    content = base64.b64decode(json.loads(values.decimal_bytes(4)(f"{number:f}")))
    assert Fraction(int.from_bytes(content, "big", signed=True), 10**4) == Fraction(number)
    found = json.loads(values.variable_decimal(f"{number:f}"))
    unscaled = int.from_bytes(base64.b64decode(found["value"]), "big", signed=True)
    assert Fraction(unscaled, 10 ** found["scale"]) == Fraction(number)
    assert found["scale"] == 0 or unscaled % 10


def test_a_numeric_of_many_thousand_digits_is_no_trouble() -> None:
    text = "7" * 30_000 + "." + "3" * 16_383
    content = base64.b64decode(json.loads(values.variable_decimal(text))["value"])
    assert int.from_bytes(content, "big", signed=True) == int(Decimal(text.replace(".", "")))


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        (values.decimal_bytes(2), "NaN"),
        (values.decimal_bytes(2), "-Infinity"),
        (values.decimal_bytes(2), "1.234"),
        (values.variable_decimal, "Infinity"),
        (values.timestamp_in(NS), "2262-04-12 00:00:00"),
        (values.timestamp_in(NS), "1677-09-20 00:00:00"),
        (values.timestamp_in(US), "294276-12-31 23:59:59.999999"),  # PostgreSQL's last
        (values.interval_us, "178000000 years"),
        (values.interval_us, "infinity"),
        (values.interval_iso, "-infinity"),
    ],
)
def test_what_has_no_place_is_told_apart_from_what_is_no_value(encode: Encoder, text: str) -> None:
    with pytest.raises(UnconvertibleError, match="the chosen format can represent nothing else"):
        encode(text)


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        *((encode, "1e5") for encode in (values.decimal_bytes(2), values.decimal_double, values.decimal_string)),
        *((money_string, text) for text in ("", "$", "-", ".")),
        *((values.bit, ""), (values.bits, "2"), (values.bytea("hex"), "00"), (values.bytea("bytes"), "\\x0")),
        *((values.hstore_map, text) for text in ("a", '"a"=>', '"a"=>"b" ', '"a"=>"b"x')),
        *((values.vector, "1,2"), (values.vector, "[1,,2]"), (values.sparse_vector, "{1:1}"), (values.vector, "[x]")),
        *((values.date_number, "x"), (values.time_iso, "x"), (values.zoned_timestamp(6), "2024-01-31 12:00:00")),
    ],
)
def test_text_that_is_not_the_types_is_refused(encode: Encoder, text: str) -> None:
    with pytest.raises(MalformedValueError) as refusal:
        encode(text)
    assert not isinstance(refusal.value, UnconvertibleError)


def test_a_long_hstore_takes_time_in_proportion() -> None:
    text = ", ".join(f'"k{i}"=>"{"x" * 20}"' for i in range(20_000))
    assert len(json.loads(values.hstore_map(text))) == 20_000
    with pytest.raises(MalformedValueError):
        values.hstore_map('"' + "a" * 200_000)
    assert quote("x") == '"x"'

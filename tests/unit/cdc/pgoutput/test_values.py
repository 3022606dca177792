"""Each type's text → JSON, edge by edge. The real server's own values are in tests/integration/test_values.py."""

import json

import pytest

from cdc.model.errors import ProtocolError
from cdc.model.events import Column
from cdc.pgoutput.values import encoder_for


def encode(
    type_oid: int,
    text: str,
    type_name: str = "text",
    kind: str = "b",
    base: int = 0,
    element: int = 0,
    delimiter: str = ",",
) -> str:
    """Through the latin-1 view and back."""
    encoder = encoder_for(Column("c", type_oid, -1, type_name, True, kind, base, element, delimiter))
    return encoder(text.encode().decode("latin-1")).encode("latin-1").decode()


BOOLEAN, BYTEA, BIGINT, TEXT, DOUBLE, DATE, TIMESTAMP, TIMESTAMPTZ = 16, 17, 20, 25, 701, 1082, 1114, 1184


@pytest.mark.parametrize(
    ("type_oid", "text", "expected"),
    [
        (BOOLEAN, "t", "true"),
        (BOOLEAN, "f", "false"),
        (BIGINT, "0", "0"),
        (BIGINT, "-9223372036854775808", "-9223372036854775808"),
        (26, "4294967295", "4294967295"),  # oid
        (DOUBLE, "0.1", "0.1"),
        (DOUBLE, "1e+20", "1e+20"),
        (DOUBLE, "5e-324", "5e-324"),
        (DOUBLE, "-0", "-0.0"),
        (DOUBLE, "NaN", '"NaN"'),
        (700, "-Infinity", '"-Infinity"'),
        (1700, "NaN", '"NaN"'),  # numeric
        (1700, "1" * 100 + ".50", f'"{"1" * 100}.50"'),
        (790, "-$1,234.50", '"-$1,234.50"'),  # money
        (TEXT, "", '""'),
        (TEXT, 'Zoë "q" \\ \n\t\x01\x7f 😀\u2028/', r'"Zoë \"q\" \\ \n\t\u0001' + "\x7f 😀\u2028" + '/"'),
        (1042, "ab    ", '"ab    "'),  # char(6)
        (114, '{"a": "\\u0000"}', r'"{\"a\": \"\\u0000\"}"'),  # json
        (BYTEA, "\\x", '""'),
        (BYTEA, "\\x00ff5c", '"AP9c"'),
        (DATE, "2024-01-31", '"2024-01-31"'),
        (DATE, "infinity", '"infinity"'),
        (DATE, "4713-01-01 BC", '"4713-01-01 BC"'),
        (DATE, "5874897-12-31", '"5874897-12-31"'),
        (1083, "24:00:00", '"24:00:00"'),  # time
        (TIMESTAMP, "2024-01-31 12:00:00.123", '"2024-01-31T12:00:00.123"'),
        (TIMESTAMP, "2024-01-31 12:00:00", '"2024-01-31T12:00:00"'),
        (TIMESTAMP, "-infinity", '"-infinity"'),
        (TIMESTAMP, "0044-03-15 12:00:00 BC", '"0044-03-15 12:00:00 BC"'),
        (TIMESTAMP, "294276-12-31 23:59:59.999999", '"294276-12-31 23:59:59.999999"'),
        (TIMESTAMPTZ, "2024-01-31 12:00:00.123+00", '"2024-01-31T12:00:00.123Z"'),
        (TIMESTAMPTZ, "infinity", '"infinity"'),
        (TIMESTAMPTZ, "4713-01-02 00:00:00+00 BC", '"4713-01-02 00:00:00+00 BC"'),
        (TIMESTAMPTZ, "10000-01-01 00:00:00+00", '"10000-01-01 00:00:00+00"'),
        (1186, "-1 days", '"-1 days"'),  # interval
        (2950, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ],
)
def test_text_becomes_json(type_oid: int, text: str, expected: str) -> None:
    assert encode(type_oid, text) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        *((BOOLEAN, text) for text in ("", "true", "T", "tt")),
        *((BIGINT, text) for text in ("", "-", "+1", "01", "-0", "1.0", " 1", "1 ", "1\n", "²", "١", "1_0", "NaN")),
        *((DOUBLE, text) for text in ("", "-", "1.", ".5", "01", "1E5", "1e", "nan", "inf", "0x1", "1_0", "1 ", "1\n")),
        *((BYTEA, text) for text in ("", "\\", "x00", "\\x0", "\\xzz", "\\x00 ", "\\x0 0", "abc", "\\\\x00")),
        *((DATE, text) for text in ("", "31.01.2024", "2024-1-1", "2024-01-31\n", "Infinity", "01/31/2024")),
        *((TIMESTAMP, text) for text in ("", "2024-01-31", "2024-01-31T12:00:00", "2024-01-31 12:00:00+00", "now")),
        *((TIMESTAMP, text) for text in ("2024-01-31 12:00:00.", "2024-01-31 12:00:00.1234567", "infinity BC")),
        *((TIMESTAMPTZ, text) for text in ("", "2024-01-31 12:00:00", "2024-01-31 12:00:00+02")),
        *((TIMESTAMPTZ, text) for text in ("2024-01-31 12:00:00+00\n", "2024-01-31 12:00:00-00", "Infinity")),
    ],
)
def test_text_that_is_not_the_types_is_refused_without_showing_it(type_oid: int, text: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        encode(type_oid, text)
    assert "as PostgreSQL prints it" in refusal.value.message
    assert len(text) < 3 or text not in str(refusal.value)


@pytest.mark.parametrize(
    ("type_name", "element", "text", "expected"),
    [
        ("integer[]", 23, "{1,-2,NULL}", "[1,-2,null]"),
        ("boolean[]", 16, "{t,f}", "[true,false]"),
        ("double precision[]", 701, "{0.1,NaN}", '[0.1,"NaN"]'),
        ("numeric(10,2)[]", 1700, "{1.10}", '["1.10"]'),
        (
            "timestamp with time zone[]",
            1184,
            '{"2024-01-31 12:00:00+00",infinity}',
            '["2024-01-31T12:00:00Z","infinity"]',
        ),
        ("bytea[]", 17, r'{"\\x00ff"}', '["AP8="]'),
        ("text[]", 25, '{"Zoë \\"q\\"",ë}', '["Zoë \\"q\\"","ë"]'),
        ("names", 25, "{a,b}", '["a","b"]'),  # a domain over text[]
    ],
)
def test_arrays_take_their_elements_type(type_name: str, element: int, text: str, expected: str) -> None:
    assert encode(16500, text, type_name, element=element) == expected


@pytest.mark.parametrize(
    ("type_oid", "type_name", "base", "text", "expected"),
    [
        (16501, "public.positive", 23, "17", "17"),  # a domain over integer
        (22, "int2vector", 22, "1 2 3", '"1 2 3"'),  # has elements, and is printed in another form than arrays
    ],
)
def test_domains_take_their_base_type(type_oid: int, type_name: str, base: int, text: str, expected: str) -> None:
    assert encode(type_oid, text, type_name, base=base) == expected


@pytest.mark.parametrize(
    ("type_name", "element", "delimiter", "text", "expected"),
    [
        ("public.mood[]", 16499, ",", '{fine,"so so"}', '["fine","so so"]'),
        ("public.moods", 16499, ",", "{fine,NULL}", '["fine",null]'),  # a domain over mood[]
        ("public.positive[]", 23, ",", "{17,NULL}", "[17,null]"),  # of a domain over integer
        ("public.boxy[]", 603, ";", "{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]'),
        ("public.geometry(Point,4326)[]", 16498, ":", "{0101:0102}", '["0101","0102"]'),
        ("public.names[]", 1009, ",", r'{"{a,\"b c\"}",NULL}', r'["{a,\"b c\"}",null]'),  # of a domain over text[]
    ],
)
def test_arrays_of_other_types_are_known_by_their_element(
    type_name: str, element: int, delimiter: str, text: str, expected: str
) -> None:
    assert encode(16500, text, type_name, base=16500, element=element, delimiter=delimiter) == expected


def test_an_enum_is_text_whatever_its_labels_and_name() -> None:
    assert encode(16500, '{"a"}', 'public."odd[]"', kind="e") == r'"{\"a\"}"'


def test_a_malformed_element_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not an integer"):
        encode(1007, "{1,x}", "integer[]", element=23)
    with pytest.raises(ProtocolError, match="not an array"):
        encode(1007, "1,2", "integer[]", element=23)

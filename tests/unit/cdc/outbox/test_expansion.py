"""What Debezium makes of JSON text; more of it is in the recorded fixtures (see test_router)."""

import json

import pytest

from cdc.outbox.expansion import Expansion, java_decimal, json_text

PLAIN = Expansion(keeps_nulls=False, keeps_empty_arrays=False)
KEEPING = Expansion(keeps_nulls=True, keeps_empty_arrays=True)


def expanded(text: str, expansion: Expansion = PLAIN) -> str | None:
    found = expansion.expand(text, "payload")
    return found and found[1]


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "17",
        "",
        " {}",
        "{",
        '{"a": NaN}',
        '{"a": [1, "x"]}',
        '{"a": [1, 2.5]}',
        '{"a": [true, 1]}',
        '{"a": [null]}',
        '{"a": 100000000000000000000}',
        '{"a": [{"b": 1}, {"b": "x"}]}',
        '{"a": [[1], ["x"]]}',
        '{"a":' * 100_000,
    ],
)
def test_what_has_no_one_schema_stays_text(text: str) -> None:
    assert expanded(text) is None


def test_nulls_and_empty_arrays_are_left_out_or_kept() -> None:
    text = '{"a": null, "b": [], "c": {"d": null}}'
    assert expanded(text) == '{"c":{}}'
    assert expanded(text, KEEPING) == '{"a":null,"b":[],"c":{"d":null}}'


def test_objects_of_an_array_get_the_fields_of_all() -> None:
    assert expanded('{"a": [{"x": null}, null, {"x": 1, "y": "z"}]}', KEEPING) == (
        '{"a":[{"x":null,"y":null},null,{"x":1,"y":"z"}]}'
    )


def test_a_value_is_the_same_json_after_expansion() -> None:
    text = '{"s": "\\u0001\\u2028é\\"\\\\", "i": -5, "l": 3000000000, "d": 0.001, "b": true, "n": [[1], [2, 3]]}'
    assert json.loads(expanded(text) or "") == json.loads(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e21, "1.0E21"),
        (1e-7, "1.0E-7"),
        (0.001, "0.001"),
        (1234567.5, "1234567.5"),
        (1e7, "1.0E7"),
        (-0.0, "-0.0"),
    ],
)
def test_doubles_are_as_java_prints_them(number: float, text: str) -> None:
    assert java_decimal(repr(number)) == text


def test_a_float_has_its_own_shortest_digits() -> None:
    assert (java_decimal("0.1"), java_decimal("16777216"), java_decimal("100")) == ("0.1", "1.6777216E7", "100.0")


def test_control_characters_are_escaped_as_jackson_does() -> None:
    assert json_text('\x1f\n"\\é') == '"\\u001F\\n\\"\\\\é"'

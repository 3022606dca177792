"""JSON is read and written with all digits of its numbers."""

import pytest

from sinks.json_numbers import JsonNumber, json_text, read_json


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.50, -0.0, 12345678901234567890123, "é\\n\\u0001\\"", true, null], "b": {}, "c": []}',
        "1" + "0" * 400 + ".5",
        "[1e400, 1E-400]",
        '"text"',
        "null",
    ],
)
def test_json_comes_back_as_it_was(text: str) -> None:
    assert json_text(read_json(text)) == text


def test_numbers_are_ordinary_floats_as_well() -> None:
    number = read_json("2.50")
    assert isinstance(number, JsonNumber) and number == 2.5 and number.text == "2.50"
    assert type(read_json("2")) is int


def test_spaces_are_those_of_jsonb() -> None:
    assert json_text(read_json('{"a":[1,2]}')) == '{"a": [1, 2]}'

"""Values of a type, and those that are refused without being shown."""

from collections.abc import Callable
from typing import Any

import pytest

from sinks.json_values import Unholdable, as_binary, as_boolean, as_text


def test_values_of_the_type_are_taken() -> None:
    assert (as_text(""), as_boolean(False), as_binary("AP8=")) == ("", False, b"\x00\xff")


@pytest.mark.parametrize(
    ("convert", "value", "reason"),
    [
        (as_text, 1, "not text"),
        (as_boolean, 1, "not a boolean"),
        (as_boolean, "true", "not a boolean"),
        (as_binary, True, "not text"),
        (as_binary, "secret!", "not base64"),
        (as_binary, "QQ", "not base64"),
    ],
)
def test_others_are_refused_without_being_shown(convert: Callable[[Any], Any], value: Any, reason: str) -> None:
    with pytest.raises(Unholdable) as raised:
        convert(value)
    assert str(raised.value) == reason

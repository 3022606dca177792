"""What messages hold."""

import json
from typing import Any

import pytest

from cdc.outbox.message_reader import MessageRow, read_message

EVENT = {
    "id": "i",
    "aggregatetype": "order",
    "aggregateid": "7",
    "type": "Placed",
    "payload": '{"a": 1}',
    "headers": None,
}


def read(**changed: Any) -> MessageRow | str:
    return read_message(json.dumps(EVENT | changed).encode())


def test_a_message_is_the_row_of_an_outbox_table() -> None:
    assert read() == MessageRow(("i", "order", "7", "Placed", '{"a": 1}'), ())
    assert read(payload=None, headers={"a": "ä", "b": None}) == MessageRow(
        ("i", "order", "7", "Placed", None), (("a", "ä".encode()), ("b", None))
    )


@pytest.mark.parametrize(
    "changed", [{"id": None}, {"type": 1}, {"payload": {}}, {"more": 1}, {"headers": []}, {"headers": {"a": 1}}]
)
def test_what_is_no_event_has_a_reason(changed: dict[str, Any]) -> None:
    assert isinstance(read(**changed), str)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'"' + b"x" * 10, b"[" * 100_000])
def test_any_bytes_have_a_reason(content: bytes) -> None:
    assert isinstance(read_message(content), str)

"""Row messages taken apart and put together."""

import pytest

from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from cdc.pgoutput.row_parts import RawValue, RowTuple, join_message, split_message
from tests.support import wire

ROW: list[TupleValue] = [b"text", NULL, b"\0\1", UNCHANGED, b""]
MESSAGES = {
    "insert": wire.insert(7, ROW),
    "update": wire.update(7, ROW),
    "update with old row": wire.update(7, ROW, [NULL, b"x", NULL, NULL, NULL], b"O"),
    "delete": wire.delete(7, ROW),
    "no columns": wire.insert(7, []),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_what_is_put_together_is_what_was_taken_apart(message: bytes) -> None:
    parts = split_message(memoryview(message))
    assert parts is not None
    assert join_message(parts) == message


def test_values_have_their_kind_and_content() -> None:
    parts = split_message(memoryview(MESSAGES["update with old row"]))
    assert parts is not None
    old, new = parts.tuples
    assert (old.kind, new.kind) == (b"O", b"N")
    assert new == RowTuple(
        b"N", [RawValue(b"t", b"text"), RawValue(b"n"), RawValue(b"t", b"\0\1"), RawValue(b"u"), RawValue(b"t", b"")]
    )


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_what_is_cut_or_has_more_is_no_row(message: bytes) -> None:
    whole = memoryview(message)
    for size in range(len(message)):
        parts = split_message(whole[:size])
        # An old tuple alone is a whole message in its form, if not in its meaning.
        assert parts is None or join_message(parts) == message[:size]
    assert split_message(memoryview(message + b"\0")) is None
    assert split_message(memoryview(message + b"N\0\1")) is None


@pytest.mark.parametrize("message", [wire.begin(1, 2, 3), b"", b"I", wire.insert(7, [b"x"]).replace(b"t", b"z")])
def test_other_messages_are_no_rows(message: bytes) -> None:
    assert split_message(memoryview(message)) is None

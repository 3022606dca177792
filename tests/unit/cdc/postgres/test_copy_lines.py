"""Keys in lines of COPY's text format; tests/integration/test_chunks.py receives them."""

import pytest

from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import TableId
from cdc.postgres.copy_lines import fields_of, key_of

TABLE = TableId("public", "things")


def test_a_key_has_the_texts_of_its_fields_in_its_own_order() -> None:
    assert key_of(b"1\tx\t2024-01-31", [2, 0], TABLE) == ("2024-01-31", "1")


@pytest.mark.parametrize(
    ("field", "key"),
    [
        (b"", ""),
        (b"\\\\N", "\\N"),
        (b"\\\\x00ff", "\\x00ff"),
        (b"a\\tb\\nc\\rd\\be\\ff\\vg", "a\tb\nc\rd\be\ff\vg"),
        ("数据🌊".encode(), "数据🌊"),
    ],
)
def test_escapes_are_undone(field: bytes, key: str) -> None:
    assert key_of(b"1\t" + field, [1], TABLE) == (key,)


def test_what_is_not_utf8_is_an_error_without_the_value() -> None:
    with pytest.raises(SourceError, match=r"table public\.things is not UTF-8") as caught:
        key_of(b"caf\xe9", [0], TABLE)
    assert "caf" not in str(caught.value)


def test_what_a_server_that_promises_utf8_did_not_send_so_is_read_again() -> None:
    with pytest.raises(ConnectionLost, match=r"table public\.things is not UTF-8, which the encoding of the database"):
        key_of(b"caf\xe9", [0], TABLE, promises_utf8=True)


def test_fields_are_texts_or_null() -> None:
    assert fields_of(b"1\t\\N\t\t\\\\N\ta\\tb\t\xff") == [b"1", None, b"", b"\\N", b"a\tb", b"\xff"]
    assert fields_of(b"1\tx") == [b"1", b"x"]

"""Text that is not UTF-8: blamed on the database only where its encoding allows it, or where it comes each time."""

import pytest

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.utf8 import not_utf8
from cdc.model.errors import DamagedTextError, UnsupportedChangeError
from cdc.model.events import Column, Position, TableId
from cdc.model.lsn import Lsn
from tests.support import wire

TABLE = TableId("public", "things")
PLACE = Position(Lsn(0x2000), 5)
CONTEXT = EnvelopeContext("shop", "shop", 1, "0", promises_utf8=True)


def met(text: bytes, *, promises_utf8: bool) -> UnsupportedChangeError:
    with pytest.raises(UnicodeDecodeError) as caught:
        text.decode()
    return not_utf8(TABLE, PLACE, text, caught.value, promises_utf8=promises_utf8)


def test_sql_ascii_is_blamed_where_the_database_is_in_it() -> None:
    error = met(b"caf\xe9", promises_utf8=False)
    assert not isinstance(error, DamagedTextError)
    assert error.message == "public.things at 0/2000#5: a value is not UTF-8"
    assert "SQL_ASCII" in error.hint


def test_a_database_that_promises_utf8_is_not_blamed() -> None:
    error = met(b"caf\xe9", promises_utf8=True)
    assert isinstance(error, DamagedTextError)
    assert error.table == TABLE
    assert "SQL_ASCII" not in str(error)
    assert "caf" not in str(error)  # no row values


def test_only_the_same_bytes_are_taken_for_the_same() -> None:
    def near(text: bytes) -> bytes:
        error = met(text, promises_utf8=True)
        assert isinstance(error, DamagedTextError)
        return error.near

    row = b'{"id":1,"v":"' + b"x" * 100
    assert near(row + b'\xff","ts_ms":1}') == near(row + b'\xff","ts_ms":2}')  # what follows is another each time
    assert near(row + b"\xff") != near(row + b"\xfe")
    assert near(row + b"\xff") != near(row + b"y\xff")


def test_what_stays_damaged_stops_the_table_with_a_sentence_that_says_so() -> None:
    error = met(b"caf\xe9", promises_utf8=True)
    assert isinstance(error, DamagedTextError)
    repeated = error.repeated(3)
    assert type(repeated) is UnsupportedChangeError
    assert repeated.table == TABLE
    assert repeated.message.startswith(
        "public.things at 0/2000#5: a value is not UTF-8: the server sent the same bytes 3"
    )
    assert "cdc table start public.things" in repeated.hint
    assert "SQL_ASCII" not in str(repeated)


def test_the_same_row_has_the_same_digest_in_another_reading() -> None:
    """Positions, versions and clocks of two readings differ."""
    columns = [Column("id", 23, -1, "integer", False), Column("v", 25, -1, "text", True)]
    schema, relation = wire.schema_and_relation(columns, ["id"])
    found = []
    for reading in (1, 2):
        encoder = TableEncoder(schema, relation, CONTEXT)
        encoder.start_transaction(1000 * reading, 2, 3, None)
        with pytest.raises(DamagedTextError) as caught:
            encoder.encode(wire.insert(schema.oid, [b"1", b"caf\xe9"]), 0, reading, 0, reading, reading)
        found.append(caught.value.near)
        encoder.start_chunk(5000 * reading, reading)
        with pytest.raises(DamagedTextError) as caught:
            encoder.copy_row(b"1\tcaf\xe9", 1, reading, reading, reading)
        found.append(caught.value.near)
    assert len(set(found)) == 1

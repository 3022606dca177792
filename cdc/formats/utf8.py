"""The errors of text that is not UTF-8. Pure."""

import hashlib
from typing import Final

from cdc.model.errors import NEXT_AFTER_STOP, DamagedTextError, UnsupportedChangeError
from cdc.model.events import Position, TableId

# Before the first byte that is wrong: part of the row, and nothing that another reading changes.
_NEAR_BYTES: Final = 64


def not_utf8(
    table: TableId, position: Position, text: bytes | memoryview, error: UnicodeDecodeError, *, promises_utf8: bool
) -> UnsupportedChangeError:
    """Returns the error for a value of this change. `text`: the decoded text; `promises_utf8`: see EnvelopeContext."""
    where = f"{table} at {position}"
    if promises_utf8:
        near = text[max(0, error.start - _NEAR_BYTES) : error.end]
        return DamagedTextError(where, table, hashlib.sha256(near).digest())
    return UnsupportedChangeError(
        f"{where}: a value is not UTF-8",
        "a database with encoding SQL_ASCII accepts such bytes: correct them, or convert the database; "
        + NEXT_AFTER_STOP.format(table=table),
        table=table,
    )

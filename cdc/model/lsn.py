"""Log sequence numbers: byte positions in PostgreSQL's write-ahead log (unsigned 64 bit)."""

import re
from typing import NewType

Lsn = NewType("Lsn", int)

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")  # int() alone would also read `-1`, `0x1` and `1_0`


def parse_lsn(text: str) -> Lsn:
    """Read PostgreSQL's `XXXXXXXX/XXXXXXXX` form. Raises ValueError on anything else."""
    parts = _TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"not an LSN: {text!r} (expected hexadecimal digits, a slash, hexadecimal digits)")
    return Lsn(int(parts[1], 16) << 32 | int(parts[2], 16))


def format_lsn(lsn: int) -> str:
    """Writes an LSN as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

"""Log sequence numbers: byte positions in PostgreSQL's write-ahead log (unsigned 64 bit)."""

from typing import NewType

Lsn = NewType("Lsn", int)

ZERO = Lsn(0)


def parse_lsn(text: str) -> Lsn:
    """Read PostgreSQL's `XXXXXXXX/XXXXXXXX` form. Raises ValueError on anything else."""
    high, slash, low = text.partition("/")
    if not slash or not 0 < len(high) <= 8 or not 0 < len(low) <= 8:
        raise ValueError(f"not an LSN: {text!r} (expected hexadecimal digits, a slash, hexadecimal digits)")
    return Lsn(int(high, 16) << 32 | int(low, 16))


def format_lsn(lsn: int) -> str:
    """Write an LSN as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

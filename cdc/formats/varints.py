"""Integers of variable length, 7 bits in a byte, lowest first: of Avro and Protobuf. Pure."""

from typing import Final

SHORT: Final = 1 << 14  # below it an integer is in the table
SHORT_BYTES: Final = [bytes((i,)) if i < 128 else bytes((i & 127 | 128, i >> 7)) for i in range(SHORT)]
_LOW: Final = [bytes((i & 127 | 128, i >> 7 | 128)) for i in range(SHORT)]  # 14 bits that others follow


def varint(number: int) -> bytes:
    """Returns an integer from 0 to 2**64 - 1. Raises OverflowError for others."""
    if 0 <= number < SHORT:
        return SHORT_BYTES[number]
    if not 0 <= number < 1 << 64:
        raise OverflowError(f"{number} has no 64 bits")
    low = b""
    while number >= SHORT:
        low += _LOW[number & 16_383]
        number >>= 14
    return low + SHORT_BYTES[number]

"""Bytes almost as they were: what a damaged, foreign or malicious server might send."""

import random
from collections.abc import Sequence
from typing import Final

# What makes a difference to the decoders: kinds of values and tuples, lengths and counts at their limits, escapes.
_PIECES: Final = (
    *(b"n", b"u", b"t", b"b", b"N", b"K", b"O", b"\0", b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80"),
    *(b"t\0\0\0\1", b"b\0\0\0\0", b"t\x7f\xff\xff\xff", b"t\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"),
    *(b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\1", b"\xff\xff", b"\x06\x40", b"\x06\x80", b"\0\1"),
    *(b"\\", b'"', b"{", b"}", b"{{{{{{{", b",", b"NULL", b"\\N", b"\t", b"\n", b"\r", b"\\x", b"[1:2]=", b"[-0:0]"),
    *(b"-", b"+", b".", b"e", b"e+999999999", b"infinity", b"NaN", b" BC", b"+00", b"00000", b"9" * 40, b" ", b":"),
)
_PIECE_COUNT: Final = len(_PIECES)
_PRINTED: Final = b'0123456789-+:. {}[](),"\\NaNtfe=<>x'
_PRINTED_COUNT: Final = len(_PRINTED)
LENGTHENED_MAX: Final = 2_000  # times that a byte is repeated


def mutate(rng: random.Random, seed: bytes, seeds: Sequence[bytes]) -> bytes:
    """One to four changes to `seed`, of which some take a part of another seed."""
    random_, mutant = rng.random, bytearray(seed)
    for _ in range(1 + int(random_() ** 3 * 4)):
        at = int(random_() * (len(mutant) + 1))
        kind = random_()
        if kind < 0.50:  # a byte: what a value may hold, one bit, or any
            if at < len(mutant):
                if kind < 0.35:
                    mutant[at] = _PRINTED[int(random_() * _PRINTED_COUNT)]
                else:
                    mutant[at] = mutant[at] ^ 1 << int(random_() * 8) if kind < 0.45 else int(random_() * 256)
        elif kind < 0.65:
            mutant[at:at] = _PIECES[int(random_() * _PIECE_COUNT)]
        elif kind < 0.75:
            piece = _PIECES[int(random_() * _PIECE_COUNT)]
            mutant[at : at + len(piece)] = piece
        elif kind < 0.85:
            del mutant[at : at + 1 + int(random_() * 12)]
        elif kind < 0.90:
            del mutant[at:]
        elif kind < 0.97:
            other = seeds[int(random_() * len(seeds))]
            start = int(random_() * len(other))
            mutant[at:at] = other[start : start + 1 + int(random_() * 24)]
        elif kind < 0.999:
            mutant[at : at + 1] = mutant[at : at + 1] * (1 + int(random_() * 8))
        else:
            mutant[at : at + 1] = mutant[at : at + 1] * int(random_() * LENGTHENED_MAX)
    return bytes(mutant)

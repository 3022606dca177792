"""Deletion vectors, which say what rows of a data file are deleted, and the Puffin files that contain them. Pure.

Iceberg's specification of `deletion-vector-v1`: length of what follows but the checksum (4 bytes, big-endian), magic
number, bitmap of positions in Roaring's portable 64-bit format, CRC-32 of magic number and bitmap (big-endian).
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from pyroaring import BitMap64

_MAGIC: Final = bytes.fromhex("d1d33964")
_PUFFIN: Final = b"PFA1"
_POSITIONS_FIELD: Final = 2147483645  # of Iceberg's metadata column `_pos`


def to_blob(positions: BitMap64) -> bytes:
    body = _MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def from_blob(blob: bytes) -> BitMap64:
    """Returns the positions. Raises ValueError."""
    body = blob[4:-4]
    if len(blob) < 12 or struct.unpack(">I", blob[:4])[0] != len(body) or not body.startswith(_MAGIC):
        raise ValueError("not a deletion vector")
    if struct.unpack(">I", blob[-4:])[0] != zlib.crc32(body):
        raise ValueError("the deletion vector's checksum differs")
    return BitMap64.deserialize(body[len(_MAGIC) :])


def puffin_file(vectors: Mapping[str, BitMap64]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Returns a Puffin file of a vector for each data file (by path), and each vector's offset and length in it."""
    content, places, blobs = bytearray(_PUFFIN), dict[str, tuple[int, int]](), []
    for path, positions in vectors.items():
        blob = to_blob(positions)
        places[path] = len(content), len(blob)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITIONS_FIELD],
                "snapshot-id": -1,  # the commit's
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        content += blob
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": "Watershed"}}).encode()
    no_flags = bytes(4)  # the payload is not compressed
    content += _PUFFIN + payload + struct.pack("<I", len(payload)) + no_flags + _PUFFIN
    return bytes(content), places

"""Deletion vectors, as other readers of Iceberg read them."""

import zlib

import pytest
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from sinks.warehouse.vectors import from_blob, puffin_file, to_blob

MANY = BitMap64([0, 1, 7, 70_000, 2**33 + 5])


def test_a_vector_is_what_the_specification_says() -> None:
    blob = to_blob(BitMap64([3]))
    assert blob[:8] == len(blob[4:-4]).to_bytes(4, "big") + bytes.fromhex("d1d33964")
    assert blob[8:20] == (1).to_bytes(8, "little") + (0).to_bytes(4, "little"), "one bitmap, of the positions below 2³²"
    assert blob[-4:] == zlib.crc32(blob[4:-4]).to_bytes(4, "big")


@pytest.mark.parametrize("positions", [BitMap64(), BitMap64([0]), BitMap64(range(70_000)), MANY])
def test_a_vector_is_read_as_it_was_written(positions: BitMap64) -> None:
    assert from_blob(to_blob(positions)) == positions


@pytest.mark.parametrize("damage", [b"", b"\0" * 20, to_blob(MANY)[:-1], to_blob(MANY)[:-4] + b"\0\0\0\0"])
def test_a_damaged_vector_is_refused(damage: bytes) -> None:
    with pytest.raises(ValueError, match="vector"):
        from_blob(damage)


def test_pyiceberg_reads_the_file() -> None:
    vectors = {"file:///a.parquet": BitMap64([1, 5]), "file:///b.parquet": BitMap64([70_000])}
    content, places = puffin_file(vectors)
    read = deletion_vectors_from_puffin_file(PuffinFile(content))
    assert {found.referenced_data_file: BitMap64(found.to_vector().to_pylist()) for found in read} == vectors
    for path, (offset, length) in places.items():
        assert from_blob(content[offset : offset + length]) == vectors[path]

"""The rows of a sink's stream: each is a *piece*, some records that were read together.

A row for each record would cost more than the store's client takes (2.2 µs in Spark's Arrow conversion alone), and a
store is written in bulk anyway. So Spark carries pieces: `records` and `bytes` for its metrics, and the content as
MessagePack, which it does not look into.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final

import msgspec
import pyarrow as pa
from confluent_kafka import Message

from spark_jobs.source.reading import Fetched, Partition

SCHEMA: Final = pa.schema([("records", pa.int64()), ("bytes", pa.int64()), ("content", pa.binary())])


class PiecePartition(msgspec.Struct, array_like=True, gc=False):
    """A partition of a piece."""

    topic: str
    number: int
    start_offset: int  # the offset from which the task reads this partition
    end_offset: int  # the one after the piece's last record of it, and after transaction markers that follow


class PieceRecord(msgspec.Struct, array_like=True, gc=False):
    """A record. `headers` only of a tombstone: other records say everything in their values."""

    partition: int  # its index in Piece.partitions
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: list[tuple[str, bytes | None]] | None = None


class Piece(msgspec.Struct, array_like=True, gc=False):
    """Records in the order in which they were read."""

    partitions: list[PiecePartition]
    records: list[PieceRecord]
    is_full: bool = False  # more records may follow at once
    lost: list[tuple[str, int, str]] = []  # topic, partition, why it is not read on

    @property
    def positions(self) -> dict[Partition, int]:
        """The offsets behind the piece."""
        return {Partition(read.topic, read.number): read.end_offset for read in self.partitions}

    def partition(self, record: PieceRecord) -> Partition:
        """The partition of a record."""
        read = self.partitions[record.partition]
        return Partition(read.topic, read.number)


EMPTY: Final = Piece([], [])
ROW_BYTES_MAX: Final = 1024 * 1024
_INTEGER: Final = Struct("=q")
_OFFSETS: Final = Struct("=ii")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Piece).decode


def piece_of(
    fetched: Fetched, start_offsets: Mapping[Partition, int], end_offsets: Mapping[Partition, int] | None = None
) -> Piece:
    """Makes a piece of what was read of the partitions in `start_offsets`. Records of others, and those from
    `end_offsets` on, are left out."""
    known: dict[tuple[str | None, int | None], int] = {}
    partitions: list[PiecePartition] = []
    for partition, reached in fetched.positions.items():
        if partition in start_offsets:
            known[partition.topic, partition.number] = len(partitions)
            last = reached if end_offsets is None else min(reached, end_offsets[partition])
            partitions.append(PiecePartition(partition.topic, partition.number, start_offsets[partition], last))
    records = [
        _record(index, message)
        for message in fetched.records
        if (index := known.get((message.topic(), message.partition()))) is not None
        and (end_offsets is None or (message.offset() or 0) < partitions[index].end_offset)
    ]
    lost = [(*partition, reason) for partition, reason in fetched.lost.items() if partition in start_offsets]
    return Piece(partitions, records, fetched.is_full, lost)


def parts_of(piece: Piece, bytes_max: int = ROW_BYTES_MAX) -> Iterator[Piece]:
    """Yields the piece in parts whose keys and values have about `bytes_max` bytes, or that are one record: each row is
    copied several times in the memory of Spark's Java process."""
    begun = size = 0
    for number, record in enumerate(piece.records):
        length = len(record.key or b"") + len(record.value or b"")
        if number > begun and size + length > bytes_max:
            yield _part(piece, piece.records[begun:number])
            begun, size = number, 0
        size += length
    yield Piece(piece.partitions, piece.records[begun:], piece.is_full, piece.lost) if begun else piece


def joined(pieces: Sequence[Piece]) -> Piece:
    """Returns one piece with the records of pieces that follow each other in a task, in their order. There is at least
    one."""
    if len(pieces) == 1:
        return pieces[0]
    places: dict[tuple[str, int], int] = {}
    partitions: list[PiecePartition] = []
    records: list[PieceRecord] = []
    for piece in pieces:
        order = [places.setdefault((read.topic, read.number), len(places)) for read in piece.partitions]
        for index, read in zip(order, piece.partitions, strict=True):
            partitions[index : index + 1] = [read]
        if order == list(range(len(order))):
            records += piece.records
        else:
            records += _moved(piece.records, order)
    return Piece(partitions, records, pieces[-1].is_full, [lost for piece in pieces for lost in piece.lost])


def _moved(records: Iterable[PieceRecord], order: Sequence[int] | Mapping[int, int]) -> list[PieceRecord]:
    """Returns the records with other indexes of their partitions."""
    return [
        PieceRecord(order[one.partition], one.offset, one.key, one.value, one.time_ms, one.headers) for one in records
    ]


def _part(piece: Piece, records: list[PieceRecord]) -> Piece:
    """Returns some records of a piece, which others follow: it reaches the last of them."""
    reached = {record.partition: record.offset + 1 for record in records}
    order = {index: number for number, index in enumerate(reached)}
    partitions = [
        PiecePartition(read.topic, read.number, read.start_offset, reached[index])
        for index in order
        for read in (piece.partitions[index],)
    ]
    return Piece(partitions, _moved(records, order), is_full=True)


def _record(partition: int, message: Message) -> PieceRecord:
    value = message.value()
    headers: Any = message.headers() if value is None else None
    return PieceRecord(partition, message.offset() or 0, message.key(), value, message.timestamp()[1], headers)


def to_row(piece: Piece) -> pa.RecordBatch:
    """Returns the row of a piece, as a batch of its own: Spark passes a batch on when it is complete."""
    content = _encode(piece)
    return pa.RecordBatch.from_arrays(
        [one_integer(len(piece.records)), one_integer(len(content)), one_binary(content)], schema=SCHEMA
    )


def one_integer(value: int) -> pa.Array:
    """Returns an array of one integer. The first `pyarrow.array` of a process would import pandas: a second of
    processor time for each worker."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(_INTEGER.pack(value))])


def one_binary(value: bytes) -> pa.Array:
    """Returns an array of one binary value, without a copy."""
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(_OFFSETS.pack(0, len(value))), pa.py_buffer(value)]
    )


def to_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    """Yields the pieces of a task's rows."""
    for batch in batches:
        for content in batch.column("content"):
            yield _decode(content.as_py())

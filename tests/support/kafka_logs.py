"""Edits a broker's log segments on disk while it is stopped: makes a transaction that is decided but never ended, or
loses the last ones."""

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cdc.kafka.topic_reader import PartitionId
from cdc.kafka.transaction_log import PREPARE_ABORT, PREPARE_COMMIT, TOPIC, decode_entry, entry_key
from watershed.devstack.endpoints import ServerStack
from watershed.devstack.instance import servers_home
from watershed.devstack.stack import Stack

SEGMENT = "00000000000000000000.log"
_HEAD = struct.Struct(">qiibIhiqqqhii")  # of a record batch, version 2
_CONTROL = 0x20
_OVER = 0, 4, 5  # of a transactional id: empty, complete and committed, complete and aborted


class Batch(NamedTuple):
    start: int  # bytes from the segment's begin
    offset: int  # of the first record
    is_control: bool
    records: bytes  # uncompressed in Kafka's own topics


def data_of(servers: ServerStack) -> Path:
    """Kafka's data folder."""
    if not isinstance(servers, Stack):
        pytest.skip("only of a native server the files are at hand")
    return servers_home(servers.folder) / "kafka" / "data"


def is_over(data: Path, transactional_id: str) -> bool:
    """Whether the last transaction's end is in all partitions, and that is noted: else a restart would write it."""
    last_state, _ = list(_entries(data, transactional_id))[-1]
    return last_state in _OVER


def last_transaction(data: Path, transactional_id: str) -> tuple[bool, frozenset[PartitionId]]:
    """Whether the last one that was ended is committed, and where it wrote."""
    decided = [entry for entry in _entries(data, transactional_id) if entry[0] in (PREPARE_COMMIT, PREPARE_ABORT)]
    state, places = decided[-1]
    return state == PREPARE_COMMIT, places


def _entries(data: Path, transactional_id: str) -> Iterator[tuple[int, frozenset[PartitionId]]]:
    wanted = entry_key(transactional_id)
    for batch in _batches(data / f"{TOPIC}-0" / SEGMENT):
        for key, value in _records(batch.records):
            if key == wanted and value:
                yield decode_entry(value)


def forget_ends(data: Path, places: Collection[PartitionId]) -> None:
    """Take the last marker out of each partition's log, as if it had never been written."""
    for topic, partition in places:
        folder = data / f"{topic}-{partition}"
        last = list(_batches(folder / SEGMENT))[-1]
        assert last.is_control, f"{folder.name} does not end with a marker"
        with (folder / SEGMENT).open("rb+") as segment:
            segment.truncate(last.start)
        for snapshot in folder.glob("*.snapshot"):
            if int(snapshot.stem) > last.offset:
                snapshot.unlink()


def lose_last(data: Path, place: PartitionId, transactions: int) -> bool:
    """Takes so many of the last transactions out of the partition's log, if it has more than these."""
    topic, partition = place
    folder = data / f"{topic}-{partition}"
    ends = [batch for batch in _batches(folder / SEGMENT) if batch.is_control]
    if len(ends) <= transactions:
        return False
    kept = ends[-transactions - 1]
    with (folder / SEGMENT).open("rb+") as segment:
        segment.truncate(next(batch.start for batch in _batches(folder / SEGMENT) if batch.start > kept.start))
    for file in (*folder.glob("*.snapshot"), *folder.glob("*index")):
        file.unlink()  # the broker makes them again
    return True


def _batches(path: Path) -> Iterator[Batch]:
    data, at = path.read_bytes(), 0
    while at + _HEAD.size <= len(data):
        offset, length, _, _, _, attributes, *_ = _HEAD.unpack_from(data, at)
        if at + 12 + length > len(data):
            return  # being written
        yield Batch(at, offset, bool(attributes & _CONTROL), data[at + _HEAD.size : at + 12 + length])
        at += 12 + length


def _records(data: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        end = at + length
        at += 1  # attributes
        for _ in range(2):  # deltas of timestamp and offset
            _, at = _varint(data, at)
        size, at = _varint(data, at)
        key, at = data[at : at + max(size, 0)], at + max(size, 0)
        size, at = _varint(data, at)
        yield key, None if size < 0 else data[at : at + size]
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at, number, shift = at + 1, number | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at

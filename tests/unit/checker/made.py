"""Records made by hand, as capture should write them."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from tests.checker.journal import Entry
from tests.checker.records import Record, partition_of

TOPIC = "shop.public.t"
PARTITIONS = 4


def key(number: int) -> bytes:
    return json.dumps({"id": number}, separators=(",", ":")).encode()


class Log:
    """A table topic that grows. Each call appends records with the next seq and offset; `**source` overrides."""

    def __init__(self, epoch: int = 1) -> None:
        self.records: list[Record] = []
        self.epoch = epoch
        self.seq = 0
        self._ends = [0] * PARTITIONS

    def append(self, key_bytes: bytes, value: bytes | None, version: int | None = None) -> Record:
        partition = partition_of(key_bytes, PARTITIONS)
        headers = () if version is None else (("watershed.version", str(version).encode()),)
        record = Record(TOPIC, partition, self._ends[partition], key_bytes, value, headers)
        self._ends[partition] += 1
        self.records.append(record)
        return record

    def change(
        self,
        op: str,
        number: int,
        commit_lsn: int,
        tx_index: int = 0,
        *,
        name: str = "x",
        xid: int | None = 7,
        **source: Any,
    ) -> Record:
        """A row record; a delete's tombstone is not added. Columns in `unchanged` are left out."""
        self.seq += 1
        row = {"id": number, "name": name}
        row = {column: value for column, value in row.items() if column not in source.get("unchanged", ())}
        value = {
            "before": {"id": number} if op == "d" else None,
            "after": None if op == "d" else row,
            "source": {
                "snapshot": "true" if op == "r" else "false",
                "schema": "public",
                "table": "t",
                "txId": None if op == "r" else xid,
                "epoch": self.epoch,
                "seq": self.seq,
                "commit_lsn": commit_lsn,
                "tx_index": tx_index,
                **source,
            },
            "op": op,
        }
        return self.append(key(number), json.dumps(value).encode())

    def delete(self, number: int, commit_lsn: int, tx_index: int = 0, xid: int = 7) -> None:
        """With its tombstone."""
        self.change("d", number, commit_lsn, tx_index, xid=xid)
        self.append(key(number), None, self.epoch << 48 | self.seq)


def position(offset: int, *, checksum: int | None = None, **fields: Any) -> Record:
    """A record of the state topic."""
    body: dict[str, Any] = {"phase": "streaming", "epoch": 1, "seq": 0, "resume_lsn": 100, "partial": None, **fields}
    sealed = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    value = {**body, "checksum": sealed if checksum is None else checksum}
    return Record("shop.state", 0, offset, b"position", json.dumps(value).encode())


def progress(offset: int, lsn: int, ends: tuple[int, ...], epoch: int = 1) -> Record:
    value = {"epoch": epoch, "seq": 0, "lsn": lsn, "end_offsets": {TOPIC: ends}}
    return Record("shop.progress", 0, offset, b"progress", json.dumps(value).encode())


def entry(
    number: int, op: str, old: int | None, new: int | None, *, xid: int = 7, lsn: int = 0, name: str = "x"
) -> Entry:
    """A journal entry of the same table. `old` and `new` are keys."""

    def row(identity: int | None) -> Mapping[str, Any] | None:
        return None if identity is None else {"id": identity, "name": name}

    def key_row(identity: int | None) -> Mapping[str, Any] | None:
        return None if identity is None else {"id": identity}

    return Entry(number, xid, lsn, "public.t", op, key_row(old), row(old), key_row(new), row(new))


def truncate(number: int, *, xid: int, lsn: int) -> Entry:
    """Of the same table."""
    return Entry(number, xid, lsn, "public.t", "TRUNCATE", None, None, None, None)

"""A transaction too large to be held: its records are judged as they are read, each against what the source must have
written. Memory is a bit for each of its changes.

The source writes blocks: so many rows are inserted, then some of these updated. So the number of a change in the
transaction (`tx_index`) says which row it is of, and what that row holds.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from tests.checker.records import Record, partition_of

SCHEMA: LiteralString = (
    "CREATE TABLE large (id int8 PRIMARY KEY, block int4 NOT NULL, touched int4 NOT NULL, note text)"
)
TABLE = "public.large"
COMPLAINTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`blocks` times `inserts` rows, of each block the first `updates` are updated."""

    blocks: int
    inserts: int
    updates: int
    below: int = 0  # ids up to this are other transactions'

    @classmethod
    def of(cls, changes: int, below: int = 0) -> "Plan":
        """About so many, three quarters of them inserts."""
        blocks = max(1, min(100, changes // 1_000))
        inserts = changes * 3 // 4 // blocks
        return cls(blocks, inserts, changes // blocks - inserts, below)

    @property
    def changes(self) -> int:
        return self.blocks * (self.inserts + self.updates)

    @property
    def rows(self) -> int:
        return self.blocks * self.inserts

    def write(self, connection: psycopg.Connection) -> int:
        """In one transaction; its id, 32 bits."""
        with connection.transaction():
            row = connection.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
            for block in range(self.blocks):
                first = self.below + block * self.inserts + 1
                connection.execute(
                    "INSERT INTO large SELECT n, %s, 0, 'row ' || n FROM generate_series(%s::int8, %s::int8) AS n",
                    (block, first, first + self.inserts - 1),
                )
                connection.execute(
                    "UPDATE large SET touched = 1 WHERE id BETWEEN %s AND %s", (first, first + self.updates - 1)
                )
        assert row is not None
        return int(row[0]) & 0xFFFFFFFF

    def change(self, index: int) -> tuple[str, dict[str, Any]]:
        """Of the transaction's change `index`, from 0: op and the row after it."""
        block, place = divmod(index, self.inserts + self.updates)
        is_update = place >= self.inserts
        number = self.below + block * self.inserts + 1 + (place - self.inserts if is_update else place)
        row = {"id": number, "block": block, "touched": int(is_update), "note": f"row {number}"}
        return ("u" if is_update else "c"), row


class Judge:
    """Feed it every record of the table's topic, each partition in its order, then ask for the verdict."""

    def __init__(self, plan: Plan, xid: int, seq_before: int) -> None:
        """`seq_before`: of the epoch's last record before the transaction; those up to it are left out."""
        self.ops: Counter[str] = Counter()
        self._plan = plan
        self._xid = xid
        self._seq_before = seq_before
        self._seen = bytearray((plan.changes + 7) // 8)
        self._last: dict[int, int] = {}  # partition → tx_index
        self._places: set[tuple[int, int]] = set()  # (epoch, commit LSN)
        self._found: list[str] = []

    def take(self, record: Record, partition_count: int) -> None:
        """The next record of its partition."""
        if len(self._found) < COMPLAINTS_MAX:
            self._found.extend(f"{record}: {what}" for what in self._wrong_with(record, partition_count))

    def complaints(self) -> list[str]:
        """After the last record. Nothing: each change of the transaction is there once, as it was written."""
        missing = self._plan.changes - sum(byte.bit_count() for byte in self._seen)
        found = [f"{missing} changes of {self._plan.changes} are lost"] if missing else []
        if len(self._places) > 1:
            found.append(f"the transaction has several epochs or commit LSNs: {sorted(self._places)}")
        return found + self._found

    def _wrong_with(self, record: Record, partition_count: int) -> Iterator[str]:
        if record.value is None:
            yield "a tombstone, and nothing was deleted"
            return
        value = json.loads(record.value)
        source = value["source"]
        if source["seq"] <= self._seq_before:
            return
        index = source["tx_index"]
        self.ops[value["op"]] += 1
        self._places.add((source["epoch"], source["commit_lsn"]))
        if source["txId"] != self._xid or not 0 <= index < self._plan.changes:
            yield f"phantom: change {index} of transaction {source['txId']}"
            return
        byte, bit = index >> 3, 1 << (index & 7)
        if self._seen[byte] & bit:
            yield f"change {index} is there twice"
        self._seen[byte] |= bit
        if source["seq"] != self._seq_before + 1 + index:
            yield f"change {index} has seq {source['seq']}, not {self._seq_before + 1 + index}"
        if index <= self._last.get(record.partition, -1):
            yield f"change {index} stands behind {self._last[record.partition]}"
        self._last[record.partition] = index
        op, row = self._plan.change(index)
        if (value["op"], value["after"], value["before"]) != (op, row, None):
            yield f"change {index} is not the {op} that was written"
        if record.key != b'{"id":%d}' % row["id"]:
            yield f"change {index} has another key"
        elif record.partition != partition_of.__wrapped__(record.key, partition_count):
            yield f"change {index} lies in another partition than its key's"

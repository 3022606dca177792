"""The state of the model of capture, and the records of its rows."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import orjson

from cdc.model.control import SourceIdentity, TopicState
from cdc.model.events import TableId, pack_version
from tests.simulation.operators.brokers import Headers
from tests.simulation.operators.source import Row, RowChange, topic_of

IDENTITY: Final = SourceIdentity(system_identifier="7000", timeline=1, database="shop", slot="ops")
ALL: Final = 1 << 30  # above every key
V = TypeVar("V")
Entry = tuple[str, int, bytes, bytes | None, Headers | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The reading of a table that is under way, or paused."""

    after: int = -1  # the last key that was read
    up_to: int = ALL
    sweeps: bool = True
    floor: int | None = None  # None: the first chunk fixes it
    parity: int | None = None  # its condition: only keys of this parity
    is_paused: bool = False
    compares: bool = False  # only rows that differ from the topic are published, and keys without a row deleted

    @property
    def is_whole(self) -> bool:
        return self.up_to == ALL and self.parity is None


@dataclass(frozen=True, slots=True)
class State:
    """What the state topic says. It is replaced as a whole, in the Kafka transaction of the records that it covers."""

    history: str
    epoch: int
    seq: int
    lsn: int  # everything that ends up to here is published, but for what is owed
    topics: Mapping[TableId, TopicState] = field(default_factory=dict)  # of captured tables
    versions: Mapping[TableId, int] = field(default_factory=dict)
    oids: Mapping[TableId, int] = field(default_factory=dict)
    snapshots: Mapping[TableId, Snapshot] = field(default_factory=dict)
    owed: Mapping[TableId, str] = field(default_factory=dict)  # of captured tables
    stopped: Mapping[TableId, str] = field(default_factory=dict)  # until an operator starts them; with the reason

    def owes_sweep(self, table: TableId) -> bool:
        """As SnapshotRecord."""
        snapshot = self.snapshots.get(table)
        return table in self.owed and (snapshot is None or snapshot.sweeps or not snapshot.is_whole)

    def without(self, table: TableId) -> "State":
        """The table is not captured any more."""
        return replace(
            self,
            topics=_without(self.topics, table),
            snapshots=_without(self.snapshots, table),
            owed=_without(self.owed, table),
        )

    def stopping(self, table: TableId, why: str) -> "State":
        return replace(self.without(table), stopped={**self.stopped, table: why})

    def starting(self, table: TableId) -> "State":
        return replace(self, stopped=_without(self.stopped, table))

    def complete(self, table: TableId) -> "State":
        """None of its rows are owed any more."""
        return replace(self, owed=_without(self.owed, table))

    def reading(self, table: TableId, snapshot: Snapshot | None, why: str = "") -> "State":
        """The snapshot begins, or goes on; None: it has ended. `why`: its rows are owed from now on."""
        snapshots = _without(self.snapshots, table) | ({} if snapshot is None else {table: snapshot})
        return replace(self, snapshots=snapshots, owed={**self.owed, table: why} if why else self.owed)


def _without(held: Mapping[TableId, V], table: TableId) -> dict[TableId, V]:
    return {other: one for other, one in held.items() if other != table}


def entries_of(state: State, change: RowChange, operation: str, partition_count: int) -> list[Entry]:
    """Returns the records of a row's change."""
    topic = topic_of(change.table)
    key = orjson.dumps({"id": change.key})
    partition = zlib.crc32(key) % partition_count
    source = {
        "schema": change.table.schema,
        "table": change.table.name,
        "epoch": state.epoch,
        "seq": state.seq,
        "schema_version": state.versions[change.table],
        "ts_us": 1,
    }
    entries: list[Entry] = [(topic, partition, key, _envelope(operation, source, change.row), None)]
    if change.row is None:
        version = str(pack_version(state.epoch, state.seq)).encode()
        entries.append((topic, partition, key, None, [("watershed.version", version)]))
    return entries


def _envelope(operation: str, source: dict[str, object], row: Row | None) -> bytes:
    return orjson.dumps({"op": operation, "source": source, "after": row})

"""The state of the model of capture, and the records of its rows."""

import zlib
from dataclasses import dataclass, field
from typing import Final

import orjson

from cdc.model.control import SourceIdentity
from cdc.model.events import TableId, pack_version
from tests.simulation.operators.brokers import Headers
from tests.simulation.operators.source import Row, RowChange, topic_of

IDENTITY: Final = SourceIdentity(system_identifier="7000", timeline=1, database="shop", slot="ops")
Entry = tuple[str, int, bytes, bytes | None, Headers | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The reading of a table that is under way, or paused."""

    after: int  # the last key that was read
    up_to: int
    sweeps: bool = False
    floor: int | None = None
    parity: int | None = None  # its condition: only keys of this parity
    is_paused: bool = False
    owes: bool = False  # it reads what is owed


@dataclass(frozen=True, slots=True)
class Known:
    """A table's topic, as the position knows it."""

    identity: str
    incarnation: str
    ends: tuple[int, ...]
    starts: tuple[int, ...]
    since: int  # LSN; earlier changes are in the snapshot, not in the stream


@dataclass(frozen=True, slots=True)
class State:
    """What the state topic says. It is replaced as a whole, in the Kafka transaction of the records that it covers."""

    history: str
    epoch: int
    seq: int
    lsn: int  # everything that ends up to here is published, but for what is owed
    topics: dict[TableId, Known] = field(default_factory=dict)  # of captured tables
    left: dict[TableId, Known] = field(default_factory=dict)  # of tables that were removed from the configuration
    versions: dict[TableId, int] = field(default_factory=dict)
    snapshots: dict[TableId, Snapshot] = field(default_factory=dict)
    owed: dict[TableId, str] = field(default_factory=dict)
    stopped: frozenset[TableId] = frozenset()


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

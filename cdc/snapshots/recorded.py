"""What state holds of snapshots."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdc.model.events import TableId
from cdc.records.control import SnapshotRecord
from cdc.snapshots.completion import Completions


@dataclass(frozen=True, slots=True)
class RecordedSnapshots:
    """What the state topic says of snapshots when a session begins."""

    records: Iterable[SnapshotRecord] = ()  # ended ones among them
    # For each table the floor up to which swept rows have their tombstones. None: sweeps are followed by none.
    tombstones: Mapping[TableId, int] | None = None
    completions: Completions | None = None

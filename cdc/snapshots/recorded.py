"""The records of snapshots in the state topic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdc.model.control import SnapshotRecord
from cdc.model.events import TableId
from cdc.snapshots.completion import Completions


@dataclass(frozen=True, slots=True)
class RecordedSnapshots:
    """The records of snapshots when a session begins."""

    records: Iterable[SnapshotRecord] = ()  # includes ended ones
    # Table → floor up to which tombstones are written behind sweeps. None: no tombstones are wanted.
    tombstones: Mapping[TableId, int] | None = None
    completions: Completions | None = None

"""Rows that exist already, on their way: into the topics at the start, and into a store that did not exist before."""

import json
from pathlib import Path

from cdc.config.settings import Config
from cdc.kafka.snapshot_watch import SnapshotWatch
from cdc.model.errors import UnreachableError, WatershedError
from cdc.snapshots.status import FillProgress


class FirstSnapshots:
    """Each table's first snapshot, from before capture has made its topics."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._watch: SnapshotWatch | None = None

    def standings(self) -> list[FillProgress]:
        """Of each captured table; empty until capture has begun them all."""
        if self._watch is None:
            self._watch = _opened(self._config)
        if self._watch is None:
            return []
        self._watch.poll(0)
        records = self._watch.snapshots()
        if not all(table in records for table in self._config.source.stored_table_ids):
            return []
        return [self._watch.progress_of(records[table]) for table in self._config.source.stored_table_ids]

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


class Filling:
    """`cdc snapshot start --sink NAME --json`: what it has said in its log so far."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0  # bytes
        self._standings: dict[tuple[str, str], FillProgress] = {}

    def standings(self) -> list[FillProgress]:
        """Of each table that is read, and of the store; what was said last."""
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._read)
                *lines, _unfinished = file.read().split(b"\n")
            self._read += sum(len(line) + 1 for line in lines)
            for line in lines:
                self._take(line)
        return list(self._standings.values())

    @property
    def is_filled(self) -> bool:
        """Whether the store is, as far as `standings` has read."""
        return any(told.what == "sink" and told.status == "done" for told in self._standings.values())

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:  # a line of a log
            return
        if isinstance(said, dict) and said.get("what") in ("table", "sink"):
            told = FillProgress(**{name: value for name, value in said.items() if name != "eta_s"})
            self._standings[told.what, told.name] = told


def _opened(config: Config) -> SnapshotWatch | None:
    """None while the topics are not there."""
    watch = SnapshotWatch.of(config)
    try:
        watch.read_to_end()
    except UnreachableError:
        watch.close()
        raise
    except WatershedError:
        watch.close()
        return None
    return watch

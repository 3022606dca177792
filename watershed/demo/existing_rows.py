"""The progress of existing rows: into the topics at the start, and into a store that did not exist before."""

import json
from pathlib import Path

from cdc.config.config_file import Config
from cdc.model.errors import UnreachableError, WatershedError
from watershed.status.fill_progress import FillProgress
from watershed.status.snapshot_watch import SnapshotWatch


class FirstSnapshots:
    """The progress of each table's first snapshot, also before capture has created its topics."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._watch: SnapshotWatch | None = None

    def progress(self) -> list[FillProgress]:
        """Returns the progress of each captured table; [] until capture has begun all snapshots."""
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
    """The progress of a store that is being filled, read from the output of `cdc snapshot start --sink NAME --json`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0  # bytes
        self._progress: dict[tuple[str, str], FillProgress] = {}

    def progress(self) -> list[FillProgress]:
        """Returns the latest progress of each table that is read, and of the store."""
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._read)
                *lines, _unfinished = file.read().split(b"\n")
            self._read += sum(len(line) + 1 for line in lines)
            for line in lines:
                self._take(line)
        return list(self._progress.values())

    @property
    def is_filled(self) -> bool:
        """True if the store is filled, as of the last call of `progress`."""
        return any(progress.what == "sink" and progress.status == "done" for progress in self._progress.values())

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:  # an ordinary line of the log
            return
        if isinstance(said, dict) and said.get("what") in ("table", "sink"):
            progress = FillProgress(**{name: value for name, value in said.items() if name != "eta_s"})
            self._progress[progress.what, progress.name] = progress


def _opened(config: Config) -> SnapshotWatch | None:
    """Returns a watch; None while the topics do not exist."""
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

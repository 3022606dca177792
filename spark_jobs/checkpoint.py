"""A sink's folder of checkpoints, one for each generation, and what Spark's offset log in it says.

`<checkpoint_location>/<prefix>/<sink>/<generation>/` is Spark's; `lock` beside it says which process runs the sink.
"""

import fcntl
import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.errors import ConfigError, SinkError

_LOCK: Final = "lock"


def checkpoint_root(location: str, prefix: str, sink: str) -> Path:
    """Raises ConfigError for a location that is not a folder of this machine."""
    if "://" in location:
        raise ConfigError(
            "spark.checkpoint_location is not a local folder, the only kind of this version",
            "name a folder, for example .watershed/checkpoints",
        )
    return Path(location).absolute() / prefix / sink


def choose_generation(marker: int | None, checkpoints: Iterable[int], published: Iterable[int]) -> tuple[int, bool]:
    """(generation, whether it is a new one). A store and a checkpoint that belong together go on; anything else is
    filled from the beginning of the topics, under a number that nothing else ever had."""
    held = set(checkpoints)
    if marker is not None and marker in held:
        return marker, False
    return max({0, *held, *published} | ({marker} if marker is not None else set())) + 1, True


class Checkpoints:
    """The folder of one sink."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def generations(self) -> list[int]:
        """Those that a query was started for."""
        if not self._root.is_dir():
            return []
        return [
            int(path.name) for path in self._root.iterdir() if path.name.isdecimal() and (path / "metadata").exists()
        ]

    def folder(self, generation: int) -> Path:
        return self._root / str(generation)

    def keep_only(self, generation: int) -> None:
        """Other generations' checkpoints belong to stores that are gone."""
        for path in self._root.iterdir():
            if path.name.isdecimal() and int(path.name) != generation:
                shutil.rmtree(path)

    def batch_end(self, generation: int, batch_id: int) -> dict[str, tuple[int, ...]]:
        """Topic → the offset at which the batch ends in each partition."""
        # A version, the query's metadata, then a line for each source; ours has one.
        source = (self.folder(generation) / "offsets" / str(batch_id)).read_text().splitlines()[2]
        ends: dict[str, dict[str, int]] = json.loads(source)
        return {
            topic: tuple(partitions.get(str(number), 0) for number in range(max(map(int, partitions)) + 1))
            for topic, partitions in ends.items()
        }

    def last_end(self, generation: int) -> dict[str, tuple[int, ...]]:
        """The end of the last batch that Spark calls done; empty before the first."""
        done = _numbers(self.folder(generation) / "commits")
        return self.batch_end(generation, max(done)) if done else {}

    def forget_plan(self, generation: int, topics: Collection[str]) -> None:
        """Let the next batch be planned anew, of these topics only. Spark plans a batch before it is read, and keeps to
        the plan after any restart: a row that was corrected since, another records_per_batch_max, or a table that was
        left out would never count. A store takes twice what was written of such a batch. Not while a query runs."""
        folder = self.folder(generation)
        done = _numbers(folder / "commits")
        if not done:
            # Whatever a kill left there: Spark begins in empty folders only.
            for log in ("offsets", "commits", "sources"):
                shutil.rmtree(folder / log, ignore_errors=True)
            return
        for batch_id in _numbers(folder / "offsets") - done:
            planned = folder / "offsets" / str(batch_id)
            _forget_checksum(planned)
            planned.unlink()
        last = folder / "offsets" / str(max(done))
        *head, source = last.read_text().splitlines()
        ends = json.loads(source)
        kept = {topic: end for topic, end in ends.items() if topic in topics}
        if kept != ends:
            replacement = last.with_name(f".{last.name}.new")
            replacement.write_text("\n".join([*head, json.dumps(kept, separators=(",", ":"))]))
            _forget_checksum(last)
            replacement.replace(last)

    def is_locked(self) -> bool:
        """Whether a process runs the sink."""
        try:
            with (self._root / _LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process at a time; the kernel lets go of it when the process ends. Raises SinkError."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SinkError(
                    f"another process runs the sink with the checkpoints in {self._root}",
                    "nothing: this one waits until the other ends",
                ) from error
            yield


def _numbers(log: Path) -> set[int]:
    """Of the batches in one of Spark's logs."""
    return {int(path.name) for path in log.iterdir() if path.name.isdecimal()} if log.is_dir() else set()


def _forget_checksum(entry: Path) -> None:
    """Spark's, which would speak of another file. Without one it believes the file."""
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)

"""The location of a sink's checkpoints, and the lock of the process on this machine that runs the sink.

`<checkpoint_location>/<prefix>/<sink>/<generation>/` is Spark's. Positions are not here: the store has the sink's
(spark_jobs/starting.py), and the progress topic a published copy. So a job may continue on another machine, and a lost
checkpoint costs nothing. A lock file beside a local checkpoint, or below `.watershed/sinks` if checkpoints are in an
object store, says that a process of this machine runs the sink; another one stands by.

Also finds tables whose rows a store holds in another form than the present mapping gives them: these are built again.
"""

import fcntl
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from cdc.config.store_mapping import IDENTITY, StoredTables, TableMapping
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from sinks.schema_history import SchemaHistory

LOCAL_FOLDER: Final = Path(".watershed/sinks")
_LOCK: Final = "lock"


def sink_folder(location: str, prefix: str, sink: str) -> Path:
    """The local folder of a sink: for its lock, its log, and its checkpoints unless `location` is a URI."""
    root = LOCAL_FOLDER if "://" in location else Path(location)
    return root.absolute() / prefix / sink


def next_generation(marker: int | None, published: Iterable[int]) -> int:
    """Returns a number that no store and no record of this sink ever had."""
    return max({0, *published} | ({marker} if marker is not None else set())) + 1


class Checkpoints:
    """The checkpoints of one sink."""

    def __init__(self, location: str, prefix: str, sink: str) -> None:
        self._remote = f"{location.rstrip('/')}/{prefix}/{sink}" if "://" in location else None
        self._folder = sink_folder(location, prefix, sink)

    def of(self, generation: int) -> str:
        """Returns the path or URI for Spark."""
        return f"{self._remote or self._folder}/{generation}"

    def keep_only(self, generations: Collection[int]) -> None:
        """Deletes local checkpoints of other generations, whose stores no longer exist. In an object store they
        stay."""
        for path in self._folder.iterdir():
            if path.name.isdecimal() and int(path.name) not in generations:
                shutil.rmtree(path)

    def is_locked(self) -> bool:
        """Says whether a process of this machine runs the sink."""
        try:
            with (self._folder / _LOCK).open("r+") as file:
                return not _lock(file)
        except FileNotFoundError:
            return False

    @contextmanager
    def locked(self, is_over: Callable[[], bool]) -> Iterator[bool]:
        """Holds the lock, which one process of this machine has at a time; the kernel releases it when the process
        ends. While another process has it, calls `is_over` again and again, which pauses and says whether to give up.
        Yields False then, True with the lock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("w") as file:
            while not (is_held := _lock(file)) and not is_over():
                pass
            yield is_held


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def reshaped_tables(
    section: StoredTables, schema_histories: Iterable[SchemaHistory], last: SinkRecord | None
) -> list[TableId]:
    """Returns these tables. `last`: the newest record of the sink. A table of which the sink has read nothing has no
    form yet."""
    if last is None:
        return []
    known = [
        schema_history.newest
        for schema_history in schema_histories
        if schema_history.newest.topic in last.end_offsets or str(schema_history.newest.table) in last.mappings
    ]
    wanted = section.fingerprints(schema.table for schema in known)
    return sorted(
        schema.table for schema in known if wanted.get(str(schema.table)) != last.mappings.get(str(schema.table))
    )


def former_mappings(
    section: StoredTables, tables: Iterable[TableId], last: SinkRecord, known: Mapping[str, str]
) -> dict[TableId, TableMapping]:
    """Returns the mappings with which the store's rows of these tables were written, so that they can be kept up to
    date until the tables are built again. `known`: see MappingsRecord.

    Returns nothing if one of them is not known, has other masks than now, without which nothing more may be written, or
    a function that is not installed any more, or only in another version.
    """
    found = {}
    for table in tables:
        now, fingerprint = section.mapped(table)[1], last.mappings.get(str(table))
        try:
            former = IDENTITY if fingerprint is None else TableMapping.parsed(known[fingerprint], now.mask)
            is_same = fingerprint is None or former.fingerprint() == fingerprint
        except (KeyError, ValueError, ConfigError):
            return {}
        if former.mask != now.mask or not is_same:
            return {}
        found[table] = former
    return found


def changed_functions(
    section: StoredTables, tables: Iterable[TableId], last: SinkRecord, known: Mapping[str, str]
) -> set[str]:
    """Returns the functions of which the rows of these tables were written with another version than is imported here,
    as far as that is known. See former_mappings."""
    found = set()
    for table in tables:
        now, fingerprint = section.mapped(table)[1], last.mappings.get(str(table))
        if now.function is None or fingerprint is None:
            continue
        try:
            former = TableMapping.parsed(known[fingerprint], now.mask)
            if former.function == now.function and former.fingerprint() != fingerprint:
                found.add(now.function)
        except (KeyError, ValueError, ConfigError):
            continue
    return found


def recorded_mappings(section: StoredTables, tables: Collection[TableId], earlier: Mapping[str, str]) -> dict[str, str]:
    """Returns the fingerprints for the sink's record. A table that the sink does not hold now keeps its `earlier` one:
    rows of that form may still be in the store when the table is included again."""
    names = set(map(str, tables))
    kept = {table: mark for table, mark in earlier.items() if table not in names}
    return kept | section.fingerprints(tables)

"""A store that keeps each table as a file of JSON lines, as an example of a store of your own.

It consists of one section, one sink, and two parts for other commands: its contents, which `cdc verify` and
`cdc repair` read, and its files, which `cdc teardown` removes. The sink follows the contract in `sinks/contract.py`,
and the conformance suite tests it and the contents. A lock on the folder makes its guard atomic: the holder reads the
file, compares versions, and replaces the file.
"""

import fcntl
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self
from urllib.parse import quote

from cdc.config.stores import StoreConfig, StoreType
from cdc.model.events import TableId, TableSchema
from sinks.contents import Key, StoreContents, StoredEntry
from sinks.contract import Change, Outcome, Result, StoredRow, lost_writes
from sinks.errors import SinkError
from sinks.reduction import document_id, with_kept

Rows = dict[
    str, dict[str, Any]
]  # document_id of the key → {"key": …, "version": …, "row": … or null for a deleted row}


class JsonLinesConfig(StoreConfig):
    """A sink's section with `type: jsonlines`."""

    names_option: ClassVar[str] = "folder"

    type: Literal["jsonlines"] = "jsonlines"
    folder: str

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """Returns the folder, which no other sink may use."""
        return ((self.folder, topic_prefix),)


class JsonLinesSink:
    """Implements sinks.contract.Sink. `<schema>.<table>.jsonl` has a line for each key."""

    def __init__(self, folder: Path, name: str = "jsonlines") -> None:
        self.name = name
        self._folder = folder
        self._schemas: dict[TableId, TableSchema] = {}

    @classmethod
    def open(cls, section: JsonLinesConfig, topic_prefix: str, name: str = "jsonlines") -> Self:
        """Creates the folder."""
        folder = Path(section.folder) / topic_prefix
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"JSON lines: {folder} can't be made: {error.strerror}", "name another folder") from error
        return cls(folder, name)

    def generation(self) -> int | None:
        with self._locked():
            held = self._read_state()
            is_whole = all((self._folder / file).exists() for file in held.get("files", ()))
            return held.get("generation") if is_whole else None

    def begin_generation(self, generation: int) -> None:
        if self.generation() != generation:
            with self._locked():
                self._write_state({"generation": generation, "files": []})

    def reset_versions(self, table: TableId) -> None:
        self.discard(table)

    def save_position(self, text: str, before: str | None) -> None:
        with self._locked():
            state = self._read_state()
            if before is not None and state.get("note") not in (before, text):
                raise lost_writes(f"JSON lines: {self._folder}")
            self._write_state(state | {"note": text})

    def saved_position(self) -> str | None:
        with self._locked():
            note: str | None = self._read_state().get("note")
            return note

    def discard(self, table: TableId) -> None:
        with self._locked():
            state, path = self._read_state(), self._path(table)
            if path.name in state.get("files", ()):
                state["files"].remove(path.name)
                self._write_state(state)
            path.unlink(missing_ok=True)

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        """Does nothing to rows of earlier schemas: a line has only the columns of its row."""
        del earlier
        with self._locked():
            state, path = self._read_state(), self._path(schema.table)
            if "generation" not in state or (path.name in state["files"] and not path.exists()):
                raise self._lost(schema.table)
            if path.name not in state["files"]:
                path.touch()
                self._write_state(state | {"files": [*state["files"], path.name]})
        self.attach(schema)

    def attach(self, schema: TableSchema) -> None:
        self._schemas[schema.table] = schema

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results = [Result(Outcome.STALE)] * len(changes)
        for table in {change.table for change in changes}:
            with self.edited(table) as rows:
                for number, change in enumerate(changes):
                    if change.table == table and self._put(rows, change):
                        results[number] = Result(Outcome.WRITTEN)
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        with self.edited(table) as rows:
            swept = [name for name, held in rows.items() if held["row"] is not None and held["version"] < floor]
            for name in swept:
                rows[name] |= {"version": floor, "row": None}
        return len(swept)

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Does nothing: a file is readable when it has replaced the former one."""

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        for line in self.lines(table).values():
            if line["row"] is not None:
                yield StoredRow(line["key"], line["row"], line["version"])

    def close(self) -> None:
        """Does nothing: no file is open between two calls."""

    def lines(self, table: TableId) -> Rows:
        with self._locked():
            return self._read(table)

    @contextmanager
    def edited(self, table: TableId) -> Iterator[Rows]:
        """Yields the table's rows, and writes them when the block ends."""
        with self._locked():
            rows = self._read(table)
            yield rows
            self._replace(self._path(table), "".join(f"{json.dumps(line)}\n" for line in rows.values()))

    def _put(self, rows: Rows, change: Change) -> bool:
        """Writes the change if it is newer than the version held. Returns whether it was written."""
        name = document_id(change.key)
        held: Mapping[str, Any] = rows.get(name, {"version": -1, "row": None})
        if held["version"] >= change.version:
            return False
        whole = with_kept(change, held["row"]) if change.unchanged else change
        if whole is None:
            return False
        rows[name] = {"key": whole.key, "version": whole.version, "row": whole.row}
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self, table: TableId) -> Rows:
        try:
            lines = self._path(table).read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise self._lost(table) from None
        held = map(json.loads, filter(None, lines))
        return {document_id(line["key"]): line for line in held}

    def _read_state(self) -> dict[str, Any]:
        path = self._folder / "sink.json"
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return state

    def _write_state(self, state: Mapping[str, Any]) -> None:
        self._replace(self._folder / "sink.json", json.dumps(state))

    def _replace(self, path: Path, content: str) -> None:
        """The old file or the new one is there at every moment."""
        new = path.with_suffix(".new")
        new.write_text(content, encoding="utf-8")
        new.replace(path)

    def _path(self, table: TableId) -> Path:
        return self._folder / f"{quote(table.schema, safe='')}.{quote(table.name, safe='')}.jsonl"

    def _lost(self, table: TableId) -> SinkError:
        return SinkError(
            f"JSON lines: the file of {table} in {self._folder} was deleted: rows may be missing",
            "nothing to do: the sink restarts and fills the store again from the topics",
        )


class JsonLinesContents(StoreContents):
    """Implements sinks.contents.StoreContents."""

    def __init__(self, sink: JsonLinesSink) -> None:
        self._sink = sink

    @classmethod
    def open(cls, section: JsonLinesConfig, topic_prefix: str, name: str) -> Self:
        return cls(JsonLinesSink.open(section, topic_prefix, name))

    def attach(self, schema: TableSchema) -> None:
        """Does nothing: a line has the names of its columns."""

    def is_partial(self, table: TableId) -> bool:
        del table
        return False

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        for stored in self._sink.rows(table):
            yield stored.key, StoredEntry(stored.version, stored.row)

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        lines = self._sink.lines(table)
        found = [lines.get(document_id(dict(key))) for key in keys]
        return [None if line is None else StoredEntry(line["version"], line["row"]) for line in found]

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        with self._sink.edited(table) as rows:
            for key, version in held:
                name = document_id(dict(key))
                if name in rows and rows[name]["version"] == version:
                    del rows[name]

    def close(self) -> None:
        self._sink.close()


def files(section: JsonLinesConfig, topic_prefix: str, tables: Collection[TableId], *, removes: bool) -> list[str]:
    """Returns the names of the sink's files; with `removes`, they are deleted."""
    del tables
    folder = Path(section.folder) / topic_prefix
    # The state first: what a crash leaves then belongs to no generation.
    found = [path for path in (folder / "sink.json", *sorted(folder.glob("*.jsonl"))) if path.exists()]
    if removes:
        for path in (*found, folder / ".lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # files of somebody else
            folder.rmdir()
    return [str(path) for path in found]


STORE: Final = StoreType(JsonLinesConfig, sink=JsonLinesSink, contents=JsonLinesContents, removal=files)

"""The content of the cache, for comparison with the source: rows with their versions, lookup keys, and keys that have
the form of a row's key and no version, because another program wrote them.

APPLY writes a row, its entry in the table's hash and its lookup keys at once. So the entry always lists the row's
lookup keys, and each lookup key leads to the live row with the highest version that lists it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from cdc.config.stores import CacheConfig
from cdc.model.events import TableId, TableSchema
from sinks.cache.calls import SCRIPT_KEYS_MAX
from sinks.cache.forms import Command, TableForm, lookup_keys
from sinks.cache.keys import VERSION_DIGITS, version_text
from sinks.cache.scripts import LOOKUPS, REMOVE
from sinks.cache.sink import CacheSink, literal
from sinks.contents import Key, StoreContents, StoredEntry, batched
from sinks.contract import Json
from sinks.reduction import key_text
from sinks.retries import Retries

READ_ROWS_MAX: Final = 200
UNVERSIONED: Final = 0  # the version of a key that another program has written


class CacheContents(StoreContents):
    """Implements sinks.contents.StoreContents. A table whose keys are deleted by every change holds no rows."""

    def __init__(self, sink: CacheSink) -> None:
        self._sink = sink
        self._server = sink.server

    @classmethod
    def open(cls, section: CacheConfig, prefix: str, name: str) -> Self:
        return cls(CacheSink.open(section, prefix, Retries(attempt_count_max=4), name))

    def attach(self, schema: TableSchema) -> None:
        self._sink.attach(schema)

    def is_partial(self, table: TableId) -> bool:
        shape = self._sink.form(table).shape
        return shape.ttl_s is not None or shape.mode == "invalidate"

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        form = self._sink.form(table)
        if not form.is_stored:
            return
        for page in self._sink.versions(table):
            for part in batched(page.items(), READ_ROWS_MAX):
                answers = self._server.run_all([form.read(row_id) for row_id, _ in part])
                held = {
                    row_id: (version, lookups, row)
                    for (row_id, (version, lookups)), answer in zip(part, answers, strict=True)
                    if (row := _row(form, answer)) is not None
                }
                wrong = self._wrong_lookups(form, held)
                for row_id, (version, _, row) in held.items():
                    yield form.key_of(row_id), StoredEntry(version, row, lookups=wrong.get(row_id, ()))
        yield from self._unversioned(form)

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        form = self._sink.form(table)
        return [held for part in batched(keys, READ_ROWS_MAX) for held in self._held(form, part)]

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        form = self._sink.form(table)
        for part in batched(held, SCRIPT_KEYS_MAX):
            command: list[Any] = ["EVALSHA", REMOVE.sha, 1, form.versions, form.deleted]
            for key, version in part:
                row_id = key_text(dict(key))
                command += [row_id, form.row_key(row_id), version_text(version)]
            self._server.run_all([tuple(command)], [REMOVE])

    def close(self) -> None:
        self._sink.close()

    def orphaned_lookups(self, table: TableId) -> Iterator[str]:
        form = self._sink.form(table)
        if not form.is_stored:  # the keys are written by applications
            return
        for literals in form.lookup_literals:
            for names in self._scanned(form, literals, "string"):
                for part in batched(names, READ_ROWS_MAX):
                    for name, (owner, entry) in self._owners(form, part).items():
                        if not owner or name in _listed(entry):
                            continue
                        row = _row(form, self._server.run(*form.read(owner))) if entry else None
                        if row is None or name not in form.lookups(row):  # else the entry of that row is wrong
                            yield name
        self._sink.require(table)

    def remove_lookups(self, table: TableId, names: Sequence[str]) -> None:
        form = self._sink.form(table)
        for part in batched(names, SCRIPT_KEYS_MAX):
            self._owners(form, part, "remove")

    def _held(self, form: TableForm, keys: Sequence[Key]) -> Iterator[StoredEntry | None]:
        """Yields what is held of each key. The version is read before and after the row: if both are the same, no job
        has written in between.
        """
        commands: list[Command] = []
        for key in keys:
            row_id = key_text(dict(key))
            commands += [("HGET", form.versions, row_id), form.read(row_id), ("GET", form.deleted + row_id)]
        answers = list(batched(self._server.run_all(commands), 3))
        rows = [_row(form, answer) if form.is_stored else None for _, answer, _ in answers]
        listed = {
            key_text(dict(key)): (_version(entry), lookup_keys(entry), row)
            for key, (entry, _, _), row in zip(keys, answers, rows, strict=True)
            if entry is not None and row is not None
        }
        wrong = self._wrong_lookups(form, listed)
        after = self._server.run_all([("HGET", form.versions, key_text(dict(key))) for key in keys])
        for at, (entry, _, deleted) in enumerate(answers):
            if entry != after[at]:
                yield from self._held(form, keys[at : at + 1])
            elif entry is not None:
                yield StoredEntry(_version(entry), rows[at], lookups=wrong.get(key_text(dict(keys[at])), ()))
            elif rows[at] is not None:
                yield StoredEntry(UNVERSIONED, rows[at])
            else:
                yield None if deleted is None else StoredEntry(int(deleted), None)

    def _wrong_lookups(
        self, form: TableForm, held: Mapping[str, tuple[int, Sequence[str], Mapping[str, Json]]]
    ) -> dict[str, tuple[tuple[str, str], ...]]:
        """The lookup keys that are not what their rows say, by the texts of the rows' primary keys. One that leads to
        another row with a higher version is right. `held`: version, lookup keys of the entry, and row."""
        if not form.lookup_literals:
            return {}
        wanted = {row_id: (version, listed, form.lookups(row)) for row_id, (version, listed, row) in held.items()}
        names = {name for _, listed, lookups in wanted.values() for name in (*listed, *lookups)}
        owners: dict[str, tuple[str, bytes]] = {}
        for part in batched(sorted(names), READ_ROWS_MAX):
            owners |= self._owners(form, part)
        found: dict[str, tuple[tuple[str, str], ...]] = {}
        for row_id, (version, listed, lookups) in wanted.items():
            wrong = [(name, _wrong(form, row_id, version, name, owners[name])) for name in lookups]
            wrong += [(name, "not listed with the row's version") for name in lookups if name not in listed]
            wrong += [(name, "the row's, which has another value") for name in listed if name not in lookups]
            if kept := tuple((name, what) for name, what in wrong if what):
                found[row_id] = kept
        return found

    def _owners(self, form: TableForm, names: Sequence[str], mode: str = "") -> dict[str, tuple[str, bytes]]:
        """Returns the value of each lookup key, and the entry of the row with that key; empty if there is none."""
        sent = [name.encode("utf-8", "surrogateescape") for name in names]
        (answers,) = self._server.run_all([("EVALSHA", LOOKUPS.sha, 1, form.versions, mode, *sent)], [LOOKUPS])
        return {
            name: ((owner or b"").decode("utf-8", "surrogateescape"), entry or b"")
            for name, (owner, entry) in zip(names, answers, strict=True)
        }

    def _unversioned(self, form: TableForm) -> Iterator[tuple[Key, StoredEntry]]:
        """Rows under keys of which the table's hash has no version."""
        for names in self._scanned(form, form.key_literals, form.key_type):
            for part in batched([name for name in names if name != form.versions], READ_ROWS_MAX):
                yield from self._without_version(form, part)

    def _scanned(self, form: TableForm, literals: Sequence[str], key_type: str) -> Iterator[list[str]]:
        """Names of keys with these texts around their values, some at a time; not necessarily once."""
        pattern = "*".join(map(literal, literals))
        for found in self._server.names(form.versions, pattern, "TYPE", key_type):
            yield [name.decode("utf-8", "surrogateescape") for name in found]

    def _without_version(self, form: TableForm, names: Sequence[str]) -> Iterator[tuple[Key, StoredEntry]]:
        rows: list[tuple[Key, StoredEntry, str]] = []
        for name, answer in zip(names, self._server.run_all([form.read_key(name) for name in names]), strict=True):
            row = _row(form, answer) or {}
            key = {column: row.get(column) for column in form.schema.key}
            if None not in key.values() and form.row_key(row_id := key_text(key)) == name:
                rows.append((key, StoredEntry(UNVERSIONED, row), row_id))
        versions = self._server.run_all([("HGET", form.versions, row_id) for _, _, row_id in rows])
        for (found, held, _), version in zip(rows, versions, strict=True):
            if version is None:
                yield found, held


def _row(form: TableForm, answer: Any) -> dict[str, Json] | None:
    """Returns the row; {} for a value that no sink writes."""
    try:
        row: Any = form.row(answer)
    except ValueError:
        row = {}
    return row if row is None or isinstance(row, dict) else {}


def _version(entry: bytes) -> int:
    return int(entry[:VERSION_DIGITS])


def _listed(entry: bytes) -> Sequence[str]:
    return lookup_keys(entry) if entry else ()


def _wrong(form: TableForm, row_id: str, version: int, name: str, held: tuple[str, bytes]) -> str:
    """Returns the error of a lookup key that the row's values name; "" if it is right."""
    owner, entry = held
    if not owner:
        return "" if form.shape.ttl_s is not None else "absent"
    if owner == row_id or (name in _listed(entry) and _version(entry) > version):
        return ""
    return f"the key of row {owner}"

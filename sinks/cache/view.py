"""The content of the cache, for comparison with the source: rows with their versions, and keys that have the form of a
row's key and no version, because another program wrote them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from cdc.config.sink_settings import CacheConfig
from cdc.model.events import TableId, TableSchema
from sinks.cache.forms import Command, TableForm
from sinks.cache.keys import VERSION_DIGITS, version_text
from sinks.cache.scripts import REMOVE
from sinks.cache.sink import SCAN_COUNT, SCRIPT_KEYS_MAX, CacheSink, literal
from sinks.contract import Json
from sinks.reduction import key_text
from sinks.retries import Retries
from sinks.view import Held, Key, batched

READ_ROWS_MAX: Final = 200
UNVERSIONED: Final = 0  # the version of a key that another program has written


class CacheView:
    """Implements sinks.view.StoreView. A table whose keys are deleted by every change holds no rows."""

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

    def rows(self, table: TableId) -> Iterator[tuple[Key, Held]]:
        form = self._sink.form(table)
        if not form.is_stored:
            return
        for page in self._sink.versions(table):
            for part in batched(page.items(), READ_ROWS_MAX):
                answers = self._server.run_all([form.read(row_id) for row_id, _ in part])
                for (row_id, version), answer in zip(part, answers, strict=True):
                    if (row := _row(form, answer)) is not None:
                        yield form.key_of(row_id), Held(version, row)
        yield from self._unversioned(form)

    def held(self, table: TableId, keys: Sequence[Key]) -> list[Held | None]:
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

    def _held(self, form: TableForm, keys: Sequence[Key]) -> Iterator[Held | None]:
        """Yields what is held of each key. The version is read before and after the row: if both are the same, no job
        has written in between.
        """
        commands: list[Command] = []
        for key in keys:
            row_id = key_text(dict(key))
            version = ("HGET", form.versions, row_id)
            commands += [version, form.read(row_id), ("GET", form.deleted + row_id), version]
        answers = self._server.run_all(commands)
        for at, (before, answer, deleted, after) in enumerate(batched(answers, 4)):
            if before != after:
                yield from self._held(form, keys[at : at + 1])
                continue
            row = _row(form, answer) if form.is_stored else None
            if after is not None:
                yield Held(int(after[:VERSION_DIGITS]), row)
            elif row is not None:
                yield Held(UNVERSIONED, row)
            else:
                yield None if deleted is None else Held(int(deleted), None)

    def _unversioned(self, form: TableForm) -> Iterator[tuple[Key, Held]]:
        """Yields rows under keys for which the table's hash has no version."""
        pattern = "*".join(map(literal, form.key_literals))
        cursor = 0
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", form.key_type)
            cursor, found = self._server.run(*command)
            names = [name.decode("utf-8", "surrogateescape") for name in found if name.decode() != form.versions]
            for part in batched(names, READ_ROWS_MAX):
                yield from self._without_version(form, part)
            if int(cursor) == 0:
                return

    def _without_version(self, form: TableForm, names: Sequence[str]) -> Iterator[tuple[Key, Held]]:
        rows: list[tuple[Key, Held, str]] = []
        for name, answer in zip(names, self._server.run_all([form.read_key(name) for name in names]), strict=True):
            row = _row(form, answer) or {}
            key = {column: row.get(column) for column in form.schema.key}
            if None not in key.values() and form.row_key(row_id := key_text(key)) == name:
                rows.append((key, Held(UNVERSIONED, row), row_id))
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

"""The sink that keeps rows in Redis or Valkey. Its keys are described in sinks/cache/keys.py."""

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Self

import structlog
from msgspec.structs import replace

from cdc.config.store_shapes import CacheShape, shape_of
from cdc.config.stores import CacheConfig
from cdc.model.events import TableId, TableSchema
from sinks.cache.calls import SCRIPT_KEYS_MAX, ApplyCall
from sinks.cache.cluster import connected
from sinks.cache.forms import RowKeys, TableForm, lookup_keys, shape_text
from sinks.cache.keys import KEY_COLUMNS, NOTE_COUNT, REBUILDING, REBUILDING_NOTE, SHAPE, VERSION_DIGITS, CacheKeys
from sinks.cache.saved_position import SavedPosition
from sinks.cache.scripts import APPLY, RESET_VERSIONS
from sinks.cache.server import Command, RedisServer
from sinks.contract import Change, Json, Outcome, Result, StoredRow
from sinks.errors import SinkError
from sinks.reduction import completed, key_text
from sinks.retries import Retries
from sinks.slots import generation_of
from sinks.templates import Part

log = structlog.get_logger(__name__)

# What is sent before an answer is read: some milliseconds of the server's work, 8 MiB at most unless a row is larger.
PIPELINE_SCRIPTS_MAX: Final = 8
READ_ROWS_MAX: Final = 16  # large rows, whose unchanged columns are read from the cache
SCAN_PAGES_REMEMBERED: Final = 16

_DEFAULT_SHAPE: Final = CacheShape()
_NO_ROWS: Final = frozenset({SHAPE.encode(), KEY_COLUMNS.encode(), NOTE_COUNT.encode()})
_ERASED: Final = "erased: "  # before the shape of keys that are being removed
_WRITTEN = Result(Outcome.WRITTEN)
_STALE = Result(Outcome.STALE)


class CacheSink:
    """Implements sinks.contract.Sink. Rejects no change: Redis takes any document as text.

    A server that was restarted may have lost its last writes (its append-only file is written every second, if there is
    one) or may have loaded an old file. So the generation is bound to the server's run id: after a restart or a
    fail-over the store holds no generation, and the job fills it again from the topics while readers go on.

    The store also holds no generation if the keys of a table have another shape than the configuration: prepare removes
    these keys, and the job fills the cache from the topics.
    """

    def __init__(
        self,
        server: RedisServer,
        key_prefix: str,
        tombstone_ttl_s: int,
        shapes: Mapping[str, CacheShape] | None = None,
        *,
        evicts: str | None = None,
        name: str = "cache",
        rebuilds: int | None = None,
    ) -> None:
        """`evicts`: the server's eviction policy; prepare logs a warning about it once. `rebuilds`: the generation that
        a rebuild fills with this object; each row is then written again.
        """
        self.name = name
        self._server = server
        self._keys = CacheKeys(key_prefix, server.in_cluster)
        self._tombstone_ttl_ms = tombstone_ttl_s * 1000
        self._shapes = shapes or {}
        self._evicts = evicts
        self._rebuilds = rebuilds
        self._saved_position = SavedPosition(server, self._keys, rebuilds=rebuilds is not None)
        self._forms: dict[TableId, TableForm] = {}
        self._templates: dict[tuple[TableId, str], list[Part]] = {}

    @classmethod
    def open(
        cls,
        config: CacheConfig,
        prefix: str,
        retries: Retries | None = None,
        name: str = "cache",
        slot: str | None = None,
    ) -> Self:
        """Connects and checks the server. Raises SinkError for a server that would evict rows."""
        server = connected(config, retries)
        try:
            evicts = _check(server, config.allow_eviction)
        except SinkError:
            server.close()
            raise
        key_prefix = prefix if config.key_prefix is None else config.key_prefix
        rebuilds = generation_of(slot) if slot else None
        ttl_s, shapes = config.tombstone_ttl_s, config.shapes
        return cls(server, key_prefix, ttl_s, shapes, evicts=evicts, name=name, rebuilds=rebuilds)

    def generation(self) -> int | None:
        fields = self._generation_fields()
        if b"generation" not in fields or fields.get(b"run_id") != self._run_id():
            return None
        tables = tables_of(fields, self._keys)
        held = self._server.run_all([("HGET", self._keys.table(table), SHAPE) for table in tables])
        for table, shape in zip(tables, held, strict=True):
            if shape is None:
                return None
            if shape.decode() != shape_text(self._shape(table)):
                log.warning("cache is filled again: the shape of a table's keys has changed", table=str(table))
                return None
        if self._rebuilds is not None:
            held_now = fields.get(REBUILDING.encode())
            return None if held_now is None else int(held_now)
        return int(fields[b"generation"])

    def begin_generation(self, generation: int) -> None:
        if self.generation() == generation:
            return
        key = self._keys.generation
        if self._rebuilds is not None:
            # The rows that an earlier rebuild wrote are not rows of this one.
            met = [self._keys.met(table) for table in tables_of(self._generation_fields(), self._keys)]
            self._server.run("HDEL", key, REBUILDING, REBUILDING_NOTE)
            self._server.run_all([("UNLINK", name) for name in met])
            self._server.run("HSET", key, REBUILDING, generation)
            return
        # The former marker stays until it is replaced: a cache with rows, and without any mark, would count as empty.
        others = self._generation_fields().keys() - {b"generation", b"run_id"}
        commands: list[Command] = [("HDEL", key, *sorted(others))] if others else []
        self._server.run_all([*commands, ("HSET", key, "generation", generation, "run_id", self._run_id())])

    def save_position(self, text: str, before: str | None) -> None:
        self._saved_position.write(text, before)

    def saved_position(self) -> str | None:
        return self._saved_position.read()

    def reset_versions(self, table: TableId) -> None:
        """Implements Sink.disown: readers keep the rows."""
        versions, deleted = self._keys.table(table), self._keys.deleted(table)
        for held in self._server.fields(versions):
            rows = [row_id for row_id in held if not row_id.startswith(b"\0")]
            for start in range(0, len(rows), SCRIPT_KEYS_MAX):
                page = rows[start : start + SCRIPT_KEYS_MAX]
                self._server.run_all([("EVALSHA", RESET_VERSIONS.sha, 1, versions, *page)], [RESET_VERSIONS])
        for found in self._server.names(versions, f"{literal(deleted)}*"):
            for start in range(0, len(found), SCRIPT_KEYS_MAX):
                self._server.run("UNLINK", *found[start : start + SCRIPT_KEYS_MAX])

    def discard(self, table: TableId) -> None:
        self._server.run("HDEL", self._keys.generation, self._keys.table_field(table))
        self._erase(table)
        # Versions of deleted rows, and rows without versions, are left.
        beginnings = self._keys.table(table).encode(), self._keys.deleted(table).encode()
        pattern = f"{literal(self._keys.table(table)[:-1])}*"
        for found in self._server.names(self._keys.table(table), pattern):
            keys = [key for key in found if key.startswith(beginnings)]
            for start in range(0, len(keys), SCRIPT_KEYS_MAX):
                self._server.run("UNLINK", *keys[start : start + SCRIPT_KEYS_MAX])

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        """Implements Sink.prepare. Rows stay as they are, since a key holds only the columns of its own row. Raises
        RefusedError for a shape that does not fit the table.
        """
        del earlier
        table = schema.table
        form = TableForm(self._keys, schema, self._shape(table))
        others = {key: parts for key, parts in self._templates.items() if key[0] != table}
        self._templates = others | {(table, text): parts for text, parts in form.check(others).items()}
        if self._evicts is not None:
            log.warning(
                "Redis evicts keys when it is full: rows may be missing, and replays may restore old rows",
                server=self._server.name,
                policy=self._evicts,
            )
            self._evicts = None
        fields = self._generation_fields()
        if b"generation" not in fields:
            raise self._lost(table)
        field = self._keys.table_field(table)
        held = self._server.run("HGET", form.versions, SHAPE)
        if field.encode() in fields:
            if held is None or held.decode() != form.text:
                raise self._lost(table)
        else:
            if held is not None and held.decode() != form.text:
                self._erase(table)
            # The shape is written first: a crash in between leaves the table unprepared.
            self._server.run("HSET", form.versions, KEY_COLUMNS, json.dumps(schema.key), SHAPE, form.text)
            self._server.run("HSET", self._keys.generation, field, "1")
        self._forms[table] = form

    def attach(self, schema: TableSchema) -> None:
        self._forms[schema.table] = TableForm(self._keys, schema, self._shape(schema.table))

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results = [_STALE] * len(changes)
        tables = {change.table for change in changes}
        # Where no rows are stored, a change needs no columns but those of lookup keys.
        if not all(self._form(table).is_stored for table in tables):
            changes = [change if self._form(change.table).is_stored else _known(change) for change in changes]
        calls = self._apply_calls(completed(changes, self._held, READ_ROWS_MAX))
        while pipeline := list(islice(calls, PIPELINE_SCRIPTS_MAX)):
            answers = self._run_scripts([call.command() for call in pipeline], tables)
            for call, stale in zip(pipeline, answers, strict=True):
                for number in call.numbers:
                    results[number] = _WRITTEN
                for position in stale:
                    results[call.numbers[position - 1]] = _STALE
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        swept = 0
        form = self._form(table)
        for page in self._scan(table):
            old = [row_id for row_id, (version, _) in page.items() if version < floor]
            calls = []
            for start in range(0, len(old), SCRIPT_KEYS_MAX):
                call = ApplyCall(form, self._tombstone_ttl_ms, "", only_live=True)
                for row_id in old[start : start + SCRIPT_KEYS_MAX]:
                    call.add_deletion(row_id, floor)
                calls.append(call.command())
            swept += len(old) - sum(map(len, self._run_scripts(calls, {table})))
        return swept

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Applied changes are visible at once."""
        self._saved_position.written(tables)

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """Yields the rows whose keys have not expired; none for a table whose keys are deleted by every change."""
        form = self._form(table)
        for page in self._scan(table) if form.is_stored else ():
            answers = self._server.run_all([form.read(row_id) for row_id in page])
            for (version, _), answer in zip(page.values(), answers, strict=True):
                if (row := form.row(answer)) is not None:
                    yield StoredRow({column: row[column] for column in form.schema.key}, row, version)

    def close(self) -> None:
        self._server.close()

    @property
    def server(self) -> RedisServer:
        return self._server

    def form(self, table: TableId) -> TableForm:
        """Returns the form in which the table's rows are kept."""
        return self._form(table)

    def versions(self, table: TableId) -> Iterator[dict[str, tuple[int, Sequence[str]]]]:
        """Version and lookup keys of the table's live rows by the texts of their primary keys, some hundreds at a
        time."""
        yield from self._pages(self._keys.table(table))

    def require(self, table: TableId) -> None:
        """Raises SinkError if the table's keys were deleted, or are being removed."""
        self._run_scripts([], {table})

    def _held(self, changes: Sequence[Change]) -> Iterator[dict[str, Json] | None]:
        """Yields the live row that the cache holds now for each change's key; None where there is none."""
        forms = [self._form(change.table) for change in changes]
        reads = [form.read(key_text(change.key)) for form, change in zip(forms, changes, strict=True)]
        for form, answer in zip(forms, self._server.run_all(reads), strict=True):
            yield form.row(answer)

    def _apply_calls(self, changes: Iterable[tuple[int, Change]]) -> Iterator[ApplyCall]:
        """Calls of APPLY, each for one table, of bounded size."""
        calls: dict[TableId, ApplyCall] = {}
        for number, change in changes:
            call = calls.get(change.table)
            if call is not None and call.add(number, change):
                continue
            if call is not None:
                yield call
            met = "" if self._rebuilds is None else self._keys.met(change.table)
            call = calls[change.table] = ApplyCall(self._form(change.table), self._tombstone_ttl_ms, met)
            call.add(number, change)
        yield from calls.values()

    def _run_scripts(self, calls: Sequence[Command], tables: Collection[TableId]) -> list[Any]:
        """Returns the answers to the calls. Raises SinkError if a table's hash was deleted, or the server is another
        process than at the beginning.

        The check is the last part of the same round trip: data deleted before or during the calls is noticed now, data
        deleted later is noticed by the next batch or by generation().
        """
        checks: list[Command] = [
            ("HMGET", self._keys.generation, "generation", "run_id"),
            ("INFO", "server"),
            *(("HGET", self._keys.table(table), SHAPE) for table in tables),
        ]
        found = self._server.run_all([*calls, *checks], [APPLY])
        answers, ((generation, run_id), info, *shapes) = found[: len(calls)], found[len(calls) :]
        prepared = [
            shape is not None and shape.decode() == self._form(table).text
            for table, shape in zip(tables, shapes, strict=True)
        ]
        lost = next((table for table, is_there in zip(tables, prepared, strict=True) if not is_there), None)
        # APPLY answers nil where the hash was gone at that moment.
        if lost is not None or generation is None or run_id != _run_id(info) or None in answers:
            raise self._lost(lost)
        return answers

    def _scan(self, table: TableId) -> Iterator[dict[str, tuple[int, Sequence[str]]]]:
        """Yields version and lookup keys of the table's live rows by the texts of their primary keys, some hundreds at
        a time, each row once. Raises SinkError at the end if the table was deleted meanwhile.
        """
        yield from self._pages(self._keys.table(table))
        self.require(table)

    def _pages(self, versions: str) -> Iterator[dict[str, tuple[int, Sequence[str]]]]:
        """Yields the rows of the hash with this key, as _scan does, without the check.

        When Redis shrinks a hash, HSCAN returns the rows of the buckets that it merges again. These are the last ones
        that it returned, so it is enough to remember some pages.
        """
        recent: deque[frozenset[bytes]] = deque(maxlen=SCAN_PAGES_REMEMBERED)
        for held in self._server.fields(versions):
            fresh = frozenset(held).difference(*recent)
            recent.append(fresh)
            page = {
                row_id.decode(): (int(held[row_id][:VERSION_DIGITS]), lookup_keys(held[row_id]))
                for row_id in fresh
                if row_id not in _NO_ROWS
            }
            if page:
                yield page

    def _erase(self, table: TableId) -> None:
        """Removes the keys of a table's rows. Other writers of the table are refused from the first step on; after a
        crash the next call continues.
        """
        versions = self._keys.table(table)
        shape, key_columns = self._server.run("HMGET", versions, SHAPE, KEY_COLUMNS)
        if shape is None or key_columns is None:
            return
        described = shape.decode().removeprefix(_ERASED)
        log.warning("removing keys of a table from the cache", table=str(table), shape=described)
        self._server.run("HSET", versions, SHAPE, f"{_ERASED}{described}")
        rows = RowKeys.described(versions, key_columns.decode(), described)
        for page in self._pages(versions):
            commands: list[Command] = [("UNLINK", rows.key(row_id)) for row_id in page]
            commands += [("UNLINK", *lookups) for _, lookups in page.values() if lookups]
            self._server.run_all(commands)
        self._server.run("UNLINK", versions)

    def _shape(self, table: TableId) -> CacheShape:
        return shape_of(self._shapes, table, _DEFAULT_SHAPE)

    def _form(self, table: TableId) -> TableForm:
        form = self._forms.get(table)
        assert form is not None, f"{table} was not prepared"
        return form

    def _generation_fields(self) -> dict[bytes, bytes]:
        fields: dict[bytes, bytes] = self._server.run("HGETALL", self._keys.generation)
        return fields

    def _run_id(self) -> bytes:
        return _run_id(self._server.run("INFO", "server"))

    def _lost(self, table: TableId | None) -> SinkError:
        what = f"keys of {table}" if table else "its keys"
        return SinkError(
            f"Redis at {self._server.name} was restarted, or {what} were deleted: rows may be missing",
            "nothing to do: the sink restarts and fills the cache again from the topics",
        )


def _known(change: Change) -> Change:
    """Returns the change without its list of unchanged columns, as if its row had only the others."""
    return replace(change, unchanged=frozenset()) if change.unchanged else change


def literal(text: str) -> str:
    """Returns a pattern of SCAN that matches exactly this text."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in text)


def tables_of(fields: Iterable[bytes], keys: CacheKeys) -> list[TableId]:
    """Returns the tables that the fields of the generation's hash mark as prepared."""
    return [table for field in fields if (table := keys.table_of_field(field.decode()))]


def _run_id(info: Any) -> bytes:
    return str(info["run_id"]).encode()


def _check(server: RedisServer, allow_eviction: bool) -> str | None:
    """Returns the server's eviction policy; None if it evicts nothing. Raises SinkError for a server that can't run the
    guard, or that would evict rows unless `allow_eviction`.
    """
    if not server.in_cluster and server.run("INFO", "server").get("redis_mode") == "cluster":
        raise SinkError(
            f"Redis at {server.name} is a node of a cluster",
            "write redis+cluster://host:port,host:port with some of its nodes in the sink's url",
        )
    policies = [
        str(memory.get("maxmemory_policy", "noeviction"))
        for memory in server.infos("memory").values()
        if int(memory.get("maxmemory", 0))
    ]
    policy = next((policy for policy in policies if policy != "noeviction"), None)
    if policy is None:
        return None
    if not allow_eviction:
        raise SinkError(
            f"Redis at {server.name} evicts keys when it is full (maxmemory-policy {policy}): rows would vanish, and "
            "deleted rows come back",
            "CONFIG SET maxmemory-policy noeviction; or give the cache a Redis of its own, or set allow_eviction: true",
        )
    return policy

"""The sink that keeps rows in Redis or Valkey. Its keys are described in sinks/cache/keys.py."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Self

from cdc.config.sink_settings import CacheConfig
from cdc.model.errors import SinkError
from cdc.model.events import TableId, TableSchema
from sinks.cache.keys import DELETED_FIELD, DOCUMENT_FIELD, PREPARED, VERSION_FIELD, CacheKeys, version_text
from sinks.cache.scripts import APPLY, SWEEP, Script
from sinks.cache.server import Command, RedisServer
from sinks.contract import Change, Outcome, Result, StoredRow
from sinks.records import decode_json, encode_json
from sinks.reduction import completed, document_id
from sinks.retries import Retries

# A script blocks the server: 200 keys take about a millisecond, and more a call brings no more keys a second.
SCRIPT_KEYS_MAX: Final = 200
SCRIPT_BYTES_MAX: Final = 1024 * 1024
# What is sent before an answer is read: some milliseconds of the server's work, 8 MiB at most unless a row is larger.
PIPELINE_SCRIPTS_MAX: Final = 8
LOOK_ROWS_MAX: Final = 16  # large ones
SCAN_COUNT: Final = 1000
SCAN_PAGES_REMEMBERED: Final = 16

_WRITTEN = Result(Outcome.WRITTEN)
_STALE = Result(Outcome.STALE)


class CacheSink:
    """See sinks.contract.Sink. Rejects nothing: a document is text to Redis.

    A server that was restarted may have lost its last writes (its append-only file is written every second, if there
    is one) or come back with an old file. So the generation is bound to the server's run id: after a restart, or a
    fail-over, the store holds no generation, and the job fills it anew from the topics while readers go on.
    """

    def __init__(self, server: RedisServer, key_prefix: str, tombstone_ttl_s: int, name: str = "cache") -> None:
        self.name = name
        self._server = server
        self._keys = CacheKeys(key_prefix)
        self._tombstone_ttl_ms = tombstone_ttl_s * 1000
        self._schemas: dict[TableId, TableSchema] = {}

    @classmethod
    def open(cls, config: CacheConfig, prefix: str, retries: Retries | None = None, name: str = "cache") -> Self:
        """Connect and check the server. Raises SinkError for one that would throw rows away by itself."""
        server = RedisServer(config.url.get_secret_value(), retries or Retries())
        try:
            _check(server)
        except SinkError:
            server.close()
            raise
        return cls(server, prefix if config.key_prefix is None else config.key_prefix, config.tombstone_ttl_s, name)

    def generation(self) -> int | None:
        fields = self._generation_fields()
        if b"generation" not in fields or fields.get(b"run_id") != self._run_id():
            return None
        sets = [key for field in fields if (key := self._keys.table_of_field(field.decode()))]
        if not all(self._server.run_all([_is_prepared(key) for key in sets])):
            return None
        return int(fields[b"generation"])

    def begin_generation(self, generation: int) -> None:
        if self.generation() == generation:
            return
        key = self._keys.generation
        # A crash in between leaves the store without a generation.
        self._server.run_all([("DEL", key), ("HSET", key, "generation", generation, "run_id", self._run_id())])

    def discard(self, table: TableId) -> None:
        live = self._keys.table(table)
        pattern, beginning = f"{_literal(live)}*", live.encode()
        self._server.run("HDEL", self._keys.generation, self._keys.table_field(table))
        cursor = 0
        while True:
            cursor, found = self._server.run("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            keys = [key for key in found if key.startswith(beginning)]
            for start in range(0, len(keys), SCRIPT_KEYS_MAX):
                self._server.run("UNLINK", *keys[start : start + SCRIPT_KEYS_MAX])
            if int(cursor) == 0:
                break

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        """A document has no shape but its row's: there is nothing to bring to a new version."""
        del earlier
        fields = self._generation_fields()
        if b"generation" not in fields:
            raise self._lost(schema.table)
        field, live = self._keys.table_field(schema.table), self._keys.table(schema.table)
        if field.encode() in fields:
            if not self._server.run(*_is_prepared(live)):
                raise self._lost(schema.table)
        else:
            # The set first: a crash in between leaves the table unprepared.
            self._server.run_all([("SADD", live, PREPARED), ("HSET", self._keys.generation, field, "1")])
        self._schemas[schema.table] = schema

    def attach(self, schema: TableSchema) -> None:
        self._schemas[schema.table] = schema

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results = [_STALE] * len(changes)
        calls = self._apply_calls(completed(changes, self._held, LOOK_ROWS_MAX))
        tables = {change.table for change in changes}
        while pipeline := list(islice(calls, PIPELINE_SCRIPTS_MAX)):
            answers = self._run_scripts([call.command() for call in pipeline], APPLY, tables)
            for call, written in zip(pipeline, answers, strict=True):
                for number, is_written in zip(call.numbers, written, strict=True):
                    if is_written:
                        results[number] = _WRITTEN
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        swept = 0
        live = self._keys.table(table).encode()
        arguments = [self._tombstone_ttl_ms, version_text(floor)]
        for keys in self._scan(table):
            calls = [
                _evalsha(SWEEP, [live, *keys[start : start + SCRIPT_KEYS_MAX]], arguments)
                for start in range(0, len(keys), SCRIPT_KEYS_MAX)
            ]
            swept += sum(self._run_scripts(calls, SWEEP, {table}))
        return swept

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Nothing to do: Redis shows what it holds."""

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        schema = self._schema(table)
        for keys in self._scan(table):
            commands: list[Command] = [("HMGET", key, VERSION_FIELD, DELETED_FIELD, DOCUMENT_FIELD) for key in keys]
            for version, deleted, document in self._server.run_all(commands):
                if version is not None and deleted is None:  # None: expired since SCAN named it
                    row = decode_json(document)
                    yield StoredRow({column: row[column] for column in schema.key}, row, int(version))

    def close(self) -> None:
        self._server.close()

    def _held(self, changes: Sequence[Change]) -> Iterator[dict[str, Any] | None]:
        """The live rows that the cache holds of these keys, as of this moment."""
        keys = [self._keys.table(change.table) + document_id(change.key) for change in changes]
        for deleted, document in self._server.run_all([("HMGET", key, DELETED_FIELD, DOCUMENT_FIELD) for key in keys]):
            yield decode_json(document) if deleted is None and document is not None else None

    def _apply_calls(self, changes: Iterable[tuple[int, Change]]) -> Iterator["_ApplyCall"]:
        """Calls of APPLY, each for one table, of bounded size."""
        calls: dict[TableId, _ApplyCall] = {}
        for number, change in changes:
            self._schema(change.table)
            document = b"" if change.row is None else encode_json(change.row)
            call = calls.get(change.table)
            if call is not None and not call.has_room(len(document)):
                yield calls.pop(change.table)
                call = None
            if call is None:
                call = calls[change.table] = _ApplyCall(self._keys.table(change.table), self._tombstone_ttl_ms)
            call.add(number, change, document)
        yield from calls.values()

    def _run_scripts(self, calls: Sequence[Command], script: Script, tables: Iterable[TableId]) -> list[Any]:
        """Answers to the calls, after which the tables' sets were still there and the server was the one we began with.

        The check comes last in the same round trip: data deleted before or during the calls is noticed now, data
        deleted later by the next batch or generation().
        """
        tables = list(tables)
        checks: list[Command] = [
            ("HMGET", self._keys.generation, "generation", "run_id"),
            ("INFO", "server"),
            *(_is_prepared(self._keys.table(table)) for table in tables),
        ]
        found = self._server.run_all([*calls, *checks], [script])
        answers, ((generation, run_id), info, *prepared) = found[: len(calls)], found[len(calls) :]
        lost = next((table for table, is_there in zip(tables, prepared, strict=True) if not is_there), None)
        if lost is not None or generation is None or run_id != _run_id(info):
            raise self._lost(lost)
        return answers

    def _scan(self, table: TableId) -> Iterator[list[bytes]]:
        """Keys of the table's live rows, some hundreds at a time, each once.

        When Redis shrinks a set, SSCAN goes again through the buckets that it merges; they are the last ones it went
        through, so that it is enough to remember those. A cursor means nothing to another server process: that it is
        still the same one is checked at the end.
        """
        live = self._keys.table(table)
        beginning = live.encode()
        recent: deque[frozenset[bytes]] = deque(maxlen=SCAN_PAGES_REMEMBERED)
        cursor = 0
        while True:
            cursor, ids = self._server.run("SSCAN", live, cursor, "COUNT", SCAN_COUNT)
            fresh = frozenset(ids).difference(*recent)
            recent.append(fresh)
            if keys := [beginning + row_id for row_id in fresh if row_id != PREPARED.encode()]:
                yield keys
            if cursor == 0:
                break
        self._run_scripts([], SWEEP, {table})

    def _schema(self, table: TableId) -> TableSchema:
        schema = self._schemas.get(table)
        assert schema is not None, f"{table} was not prepared"
        return schema

    def _generation_fields(self) -> dict[bytes, bytes]:
        fields: dict[bytes, bytes] = self._server.run("HGETALL", self._keys.generation)
        return fields

    def _run_id(self) -> bytes:
        return _run_id(self._server.info("server"))

    def _lost(self, table: TableId | None) -> SinkError:
        what = f"keys of {table}" if table else "its keys"
        return SinkError(
            f"Redis at {self._server.name} was restarted, or {what} were deleted: rows may be missing",
            "nothing: the sink starts again and fills the cache anew from the topics",
        )


class _ApplyCall:
    """A call of APPLY that is being put together."""

    def __init__(self, live: str, tombstone_ttl_ms: int) -> None:
        """`live`: the key of the table's set."""
        self.numbers: list[int] = []  # of the changes
        self._live = live
        self._keys = [live]
        self._arguments: list[Any] = [tombstone_ttl_ms]
        self._size_bytes = 0

    def has_room(self, document_bytes: int) -> bool:
        """Whether one more document fits; the first always does."""
        return len(self.numbers) < SCRIPT_KEYS_MAX and self._size_bytes + document_bytes <= SCRIPT_BYTES_MAX

    def add(self, number: int, change: Change, document: bytes) -> None:
        self.numbers.append(number)
        self._keys.append(self._live + document_id(change.key))
        self._arguments += (version_text(change.version), document)
        self._size_bytes += len(document)

    def command(self) -> Command:
        return _evalsha(APPLY, self._keys, self._arguments)


def _literal(text: str) -> str:
    """The text in a pattern of SCAN, where some characters have a meaning."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in text)


def _is_prepared(live: str) -> Command:
    """Whether the table's keys are there; `live`: the key of its set."""
    return ("SISMEMBER", live, PREPARED)


def _evalsha(script: Script, keys: Sequence[str | bytes], arguments: Sequence[Any]) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def _run_id(info: Any) -> bytes:
    return str(info["run_id"]).encode()


def _check(server: RedisServer) -> None:
    """Refuse a server that would lose rows or can't run the guard."""
    memory = server.info("memory")
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if int(memory.get("maxmemory", 0)) > 0 and policy != "noeviction":
        raise SinkError(
            f"Redis at {server.name} evicts keys when it is full (maxmemory-policy {policy}): rows would vanish, and "
            "deleted rows come back",
            "set maxmemory-policy to noeviction, or give the cache a Redis of its own",
        )
    if server.info("server").get("redis_mode") == "cluster":
        raise SinkError(
            f"Redis at {server.name} is a cluster, whose scripts can't write keys of several slots",
            "give the address of a server that is not in cluster mode in the sink's url",
        )

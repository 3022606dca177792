"""A compacted topic as the target of a view. Its last record of each key is the view's row.

| part             | content                                                                                        |
|------------------|------------------------------------------------------------------------------------------------|
| key              | a JSON object of the key's columns, in their order                                             |
| value            | a JSON object of the row, with the values of profile `readable`; none if there is no row       |
| header `view`    | `<prefix>.<name>` of the view                                                                  |
| header `version` | the version of the row as decimal digits, which never goes back for a key                      |

A topic can't refuse an older record, so there is only one writer: it has the view's lock, and its first transaction
fences any other. A writer whose lock was lost can still compute a row, but not write it.

The topic can't be asked for a key, so the base records what it holds: its keys, each with the digest of its row. A row
with a known digest need not be written again, and a sweep finds the keys that were not met. A key is noted before its
record is written, with no digest until the record is visible: after a crash in between, the record is written again. So
no key is in the topic that is not noted.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, LiteralString, NamedTuple, Self

import structlog
from psycopg import sql

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig
from cdc.config.views import TopicTarget
from cdc.kafka.topic_admin import TopicDescription
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from cdc.model.topics import Topics
from sinks.contract import Change, Outcome, Result
from sinks.errors import RefusedError, SinkError
from sinks.records import encode_json
from watershed.views.connection import connect, explained
from watershed.views.topic_writer import ViewRecord, ViewTopic

# Each key is looked up, whatever statistics say of the table.
_DIGESTS: Final[LiteralString] = """
SELECT p.key, p.digest FROM unnest(%s::text[]) AS k(key)
 CROSS JOIN LATERAL (SELECT key, digest FROM {s}.published WHERE view = %s AND key = k.key OFFSET 0) AS p
"""
_CONFIRM: Final[LiteralString] = """
UPDATE {s}.published SET digest = found.digest
  FROM (SELECT p.place, n.digest FROM unnest(%s::text[], %s::bytea[]) AS n(key, digest)
         CROSS JOIN LATERAL (SELECT ctid AS place FROM {s}.published
                              WHERE view = %s AND key = n.key AND version = %s OFFSET 0) AS p) AS found
 WHERE published.ctid = found.place
"""


class PublishedTopic(NamedTuple):
    """The topic whose keys are noted. Of a topic that was deleted and created again the id is another one."""

    topic_id: str
    partition_count: int
    generation: int


class Published:
    """The notes of one view, on a connection of their own: they are written while the base's rows are read."""

    def __init__(self, config: SqlConfig, schema: str, view: str) -> None:
        self._connection = connect(config)
        self._schema = schema
        self._view = view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def topic(self) -> PublishedTopic | None:
        with explained():
            row = self._connection.execute(
                self._sql("SELECT topic_id, partitions, generation FROM {s}.topics WHERE view = %s"), (self._view,)
            ).fetchone()
        return None if row is None else PublishedTopic(*row)

    def begin(self, topic: PublishedTopic) -> None:
        """Notes another generation of the same topic."""
        with explained():
            self._note(topic)

    def adopt(self, topic: PublishedTopic, live: Iterator[Mapping[str, bool]]) -> None:
        """Notes what a topic holds instead of all that was noted. `live`: the keys of its records in their order, some
        at a time; False for a deleted one."""
        with explained(), self._connection.transaction():
            self._connection.execute(self._sql("DELETE FROM {s}.published WHERE view = %s"), (self._view,))
            for keys in live:
                self._forget([key for key, is_live in keys.items() if not is_live])
                self._record_pending([key for key, is_live in keys.items() if is_live], 0)
            self._note(topic)

    def digests(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """Returns those of these keys that the topic may hold, with their digests where they are known."""
        with explained():
            rows = self._connection.execute(self._sql(_DIGESTS), (list(keys), self._view)).fetchall()
        return dict(rows)

    def met(self, keys: Sequence[str], version: int) -> None:
        """Notes that these rows are as they were at this version."""
        with explained():
            self._connection.execute(
                self._sql("UPDATE {s}.published SET version = %s WHERE view = %s AND key = ANY(%s) AND version < %s"),
                (version, self._view, list(keys), version),
            )

    def record_pending(self, keys: Sequence[str], version: int) -> None:
        """Notes that records of these keys are about to be written."""
        with explained():
            self._record_pending(keys, version)

    def confirm(self, digests: Mapping[str, bytes | None], version: int) -> None:
        """Notes what the topic holds now; None: the key was deleted. Another writer's later notes stay."""
        held = {key: digest for key, digest in digests.items() if digest is not None}
        with explained(), self._connection.transaction():
            self._connection.execute(self._sql(_CONFIRM), (list(held), list(held.values()), self._view, version))
            self._connection.execute(
                self._sql("DELETE FROM {s}.published WHERE view = %s AND key = ANY(%s) AND version <= %s"),
                (self._view, [key for key in digests if key not in held], version),
            )

    def older(self, floor: int, count: int) -> list[str]:
        """Returns some of the keys that were not met since this version."""
        with explained():
            rows = self._connection.execute(
                self._sql("SELECT key FROM {s}.published WHERE view = %s AND version < %s LIMIT %s"),
                (self._view, floor, count),
            ).fetchall()
        return [key for (key,) in rows]

    def _note(self, topic: PublishedTopic) -> None:
        self._connection.execute(
            self._sql(
                "INSERT INTO {s}.topics (view, topic_id, partitions, generation) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (view) DO UPDATE SET topic_id = excluded.topic_id, partitions = excluded.partitions, "
                "generation = excluded.generation"
            ),
            (self._view, *topic),
        )

    def _record_pending(self, keys: Sequence[str], version: int) -> None:
        self._connection.execute(
            self._sql(
                "INSERT INTO {s}.published (view, key, version) SELECT %s, key, %s FROM unnest(%s::text[]) key "
                "ON CONFLICT (view, key) DO UPDATE SET version = greatest(published.version, excluded.version), "
                "digest = NULL"
            ),
            (self._view, version, list(keys)),
        )

    def _forget(self, keys: Sequence[str]) -> None:
        self._connection.execute(
            self._sql("DELETE FROM {s}.published WHERE view = %s AND key = ANY(%s)"), (self._view, list(keys))
        )

    def _sql(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(s=sql.Identifier(self._schema))


log = structlog.get_logger(__name__)

READ_RECORDS: Final = 2_000
SWEEP_KEYS: Final = 1_000
_WRITTEN: Final = Result(Outcome.WRITTEN)


class _Row(NamedTuple):
    """A row in the form of its record."""

    key: str
    value: bytes | None

    @property
    def digest(self) -> bytes | None:
        return None if self.value is None else hashlib.sha256(self.value).digest()


class TopicSink:
    """Keeps a view's rows in its topic; the parts of sinks.contract.Sink that a view needs."""

    def __init__(self, view: str, target: TopicTarget, settings: Config, published: Published) -> None:
        topics = Topics(settings.topics.prefix)
        name = target.name or topics.view(view)
        self._view_header = f"{topics.prefix}.{view}".encode()
        self._config = settings.topics.model_copy(
            update={
                "partitions": target.partitions or settings.topics.partitions,
                "replication_factor": target.replication_factor or settings.topics.replication_factor,
            }
        )
        self._published = published
        self._topic = ViewTopic(settings.kafka, name, f"watershed.{topics.view(view)}")
        self._bytes_max = 0

    def generation(self) -> int | None:
        """Returns None also for a topic that was deleted, or created again, since it was filled."""
        found, known = self._topic.describe(), self._published.topic()
        if found is None or known is None or found.topic_id != known.topic_id:
            return None
        if found.partition_count != known.partition_count:
            raise RefusedError(
                f"topic {found.name} has {found.partition_count} partitions now, but had {known.partition_count} when "
                "it was filled: a key's records would be in two of them",
                "set another name in the view's target: the job creates that topic, and fills it; if no consumer needs "
                f"{found.name}, it may be deleted instead, and is then created and filled again",
            )
        return known.generation

    def begin_generation(self, generation: int) -> None:
        """Creates the topic if it does not exist. Of one that was written by an earlier job, which this base knows
        nothing of, the keys are read."""
        if self.generation() == generation:
            return
        found, known = self._topic.describe(), self._published.topic()
        if found is None:
            found = self._topic.create(self._config)
        topic = PublishedTopic(found.topic_id, found.partition_count, generation)
        if known is not None and known.topic_id == found.topic_id:
            self._published.begin(topic)
        else:
            self._published.adopt(topic, self._live(found))

    def discard(self, table: TableId) -> None:
        """Does nothing: rows in another form differ from those that the topic holds, and keys that are not met are
        swept, so that readers have the former rows until then."""

    def prepare(self, schema: TableSchema) -> None:
        """Becomes the topic's only writer."""
        found = self._topic.describe()
        if found is None:
            raise SinkError(
                f"topic {self._topic.name} was deleted", "nothing to do: the job creates it again, and fills it"
            )
        self._bytes_max = self._topic.record_bytes_max(found)
        self._topic.open(found)
        log.info("topic of the view opened", topic=found.name, partitions=found.partition_count, view=schema.table.name)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Writes the rows that differ from what the topic holds. All have one version."""
        if not changes:
            return []
        (version,) = {change.version for change in changes}
        rows = [_Row(encode_json(change.key).decode(), _value(change)) for change in changes]
        results = [self._result(row) for row in rows]
        kept = [row for row, result in zip(rows, results, strict=True) if result.outcome is not Outcome.REJECTED]
        held = self._published.digests([row.key for row in kept])
        wanted = [row for row in kept if row.key in held and (row.digest is None or row.digest != held[row.key])]
        wanted += [row for row in kept if row.key not in held and row.value is not None]
        written = {row.key for row in wanted}
        self._published.met([row.key for row in kept if row.key not in written], version)
        self._write(wanted, version)
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        """Deletes the keys that were not met since the floor."""
        del table
        swept = 0
        while keys := self._published.older(floor, SWEEP_KEYS):
            self._write([_Row(key, None) for key in keys], floor)
            swept += len(keys)
        return swept

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Does nothing: readers see what was written."""

    def close(self) -> None:
        self._topic.close()
        self._published.close()

    def findings(self, about: str) -> Iterator[Finding]:
        """Yields the findings of `cdc view check`; writes nothing."""
        found = self._topic.describe()
        if found is None:
            yield Finding(about, "ok", f"topic {self._topic.name} will be created")
            return
        for _ in self._live(found):  # the first records show whose they are
            break
        yield Finding(about, "ok", f"topic {found.name}, {found.partition_count} partitions")

    def _result(self, row: _Row) -> Result:
        size = len(row.key.encode()) + len(row.value or b"")
        if size <= self._bytes_max:
            return _WRITTEN
        return Result(Outcome.REJECTED, f"a record has {size} bytes, but the topic accepts at most {self._bytes_max}")

    def _write(self, rows: Sequence[_Row], version: int) -> None:
        if not rows:
            return
        headers = ("view", self._view_header), ("version", str(version).encode())
        self._published.record_pending([row.key for row in rows], version)
        self._topic.write([ViewRecord(row.key.encode(), row.value, headers) for row in rows])
        self._published.confirm({row.key: row.digest for row in rows}, version)

    def _live(self, topic: TopicDescription) -> Iterator[Mapping[str, bool]]:
        """Yields the keys of all records in order, some at a time; False for a deletion. Raises RefusedError for a
        record that is not the view's: a sweep would delete it."""
        keys: dict[str, bool] = {}
        for message in self._topic.records(topic.partition_count):
            headers: dict[str, object] = dict(message.headers() or ())
            if headers.get("view") != self._view_header:
                raise RefusedError(
                    f"topic {topic.name} has a record that does not belong to view {self._view_header.decode()} "
                    f"(partition {message.partition()}, offset {message.offset()})",
                    "set another name in the view's target",
                )
            keys[(message.key() or b"").decode()] = message.value() is not None
            if len(keys) >= READ_RECORDS:
                yield keys
                keys = {}
        yield keys


def _value(change: Change) -> bytes | None:
    return None if change.row is None else encode_json(change.row)

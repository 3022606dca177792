"""The base's record of what a view's topic holds, which can't be asked for a key: its keys, each with the digest of its
row. A row with a known digest need not be written again, and a sweep finds the keys that were not met.

A key is noted before its record is written, with no digest until the record is visible: after a crash in between, the
record is written again. So no key is in the topic that is not noted here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, LiteralString, NamedTuple, Self

from psycopg import sql

from cdc.config.stores import SqlConfig
from watershed.views.connection import connect, explained

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
                self._intend([key for key, is_live in keys.items() if is_live], 0)
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

    def intend(self, keys: Sequence[str], version: int) -> None:
        """Notes that records of these keys are about to be written."""
        with explained():
            self._intend(keys, version)

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

    def _intend(self, keys: Sequence[str], version: int) -> None:
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

"""The base of an event log: its table, the offsets up to which topics were loaded, and records that it can't hold.

| in schema `watershed_views_<prefix>` | holds                                                                |
|--------------------------------------|----------------------------------------------------------------------|
| `log_<name>`                         | one row for each event                                               |
| `log_offsets`                        | for each partition the topic's id, and the next offset to be loaded  |
| `log_rejected`                       | records that are no events of the log's form, and the reason         |
| `views`                              | the state and the last error of a log, as of a view                  |

A row and the offset behind it are written in one transaction, by the connection that has the log's lock.
`EventLogFigures` reads how far the log is, and changes nothing.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.config.config_file import Config
from cdc.config.event_logs import log_table
from cdc.config.stores import SqlConfig, sink_config
from cdc.kafka.topic_reader import PartitionId
from cdc.model.errors import WatershedError
from sinks.errors import SinkError
from watershed.status.view_facts import ViewFacts
from watershed.views import event_log_tables as tables
from watershed.views.connection import CONNECT_TIMEOUT_S, connect, error_text, explained
from watershed.views.event_log_rows import EventRow
from watershed.views.event_log_tables import existing_logs
from watershed.views.event_records import Bounds, EventRecord, EventTopicReader
from watershed.views.statements import COUNTED_MAX, schema_of
from watershed.views.states import States, read_counts
from watershed.views.triggers import brief_locks


class Loaded(NamedTuple):
    """The place up to which a partition was loaded."""

    topic_id: str
    next: int  # offset


class EventLogFigures:
    """A connection to the base of one log, and to its topics. Methods raise SinkError for a base that does not
    answer."""

    def __init__(self, settings: Config, log: str, connect_timeout_s: int = CONNECT_TIMEOUT_S) -> None:
        section = settings.event_logs[log]
        self._log = log
        self._schema = schema_of(settings.topics.prefix)
        self._connection = connect(base_of_log(settings, log), connect_timeout_s)
        self._topics = EventTopicReader(settings.kafka, section.topics)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def counts(self) -> ViewFacts:
        """Returns the log's figures. `behind` is None while the brokers do not answer."""
        found = read_log_counts(self._connection, self._schema, self._log)
        loaded = read_offsets(self._connection, self._schema, self._log) if found else {}
        with suppress(WatershedError):
            missing = behind(loaded, self._topics.bounds(self._topics.identities()))
            return replace(found or ViewFacts(self._log, "never run"), behind=missing)
        return found or ViewFacts(self._log, "never run")


def base_of_log(settings: Config, log: str) -> SqlConfig:
    """Returns the section of the sink in whose database the log is kept."""
    section = sink_config(settings.sinks, settings.event_logs[log].base)
    assert isinstance(section, SqlConfig), "the configuration was checked"
    return section


def behind(loaded: Mapping[PartitionId, Loaded], bounds: Mapping[PartitionId, Bounds]) -> int:
    """Returns the number of offsets that are not loaded, markers of transactions among them."""
    return sum(
        max(0, one.end - (loaded[place].next if place in loaded else one.start)) for place, one in bounds.items()
    )


def read_offsets(connection: psycopg.Connection[Any], schema: str, log: str) -> dict[PartitionId, Loaded]:
    """Returns the place up to which each partition was loaded."""
    statement = "SELECT topic, partition, topic_id, next FROM {s}.log_offsets WHERE log = %s"
    with explained():
        rows = connection.execute(sql.SQL(statement).format(s=sql.Identifier(schema)), (log,)).fetchall()
    return {(topic, partition): Loaded(topic_id, next_) for topic, partition, topic_id, next_ in rows}


def read_log_counts(connection: psycopg.Connection[Any], schema: str, log: str) -> ViewFacts | None:
    """Returns the state of a log and the number of its rejected records; None if it has never run."""
    counts = read_counts(connection, schema, log)
    if counts is None:
        return None
    statement = "SELECT count(*) FROM (SELECT FROM {s}.log_rejected WHERE log = %s LIMIT %s) r"
    with explained():
        row = connection.execute(sql.SQL(statement).format(s=sql.Identifier(schema)), (log, COUNTED_MAX)).fetchone()
    return replace(counts, rejected=row[0] if row else 0)


_LIMIT_EXCEEDED: Final = "54"  # the class of errors of values that are too large or too deep


class Rejected(NamedTuple):
    """A record that is not in the log."""

    record: EventRecord
    reason: str


class EventBatch(NamedTuple):
    """Records, as rows or as rejected, and the offsets after them."""

    rows: Sequence[tuple[EventRow, EventRecord]]
    rejected: Sequence[Rejected]
    offsets: Mapping[PartitionId, Loaded]


class EventLogBase(States):
    """A connection to the base of an event log. Methods raise SinkError for a database that does not answer."""

    def lock(self, view: str) -> bool:
        """Takes the lock as for a view, but listens for no changes: nothing would ever collect the notifications."""
        is_locked = super().lock(view)
        with explained():
            self._connection.execute("UNLISTEN *")
        return is_locked

    def create(self, log: str) -> bool:
        """Creates the log's table where it is missing, also where somebody has dropped it. Returns whether it was."""
        names = {name: sql.Identifier(f"{tables.table_of(log)}_{name}") for name in ("ids", "aggregates")}
        with explained(), self._connection.transaction():
            if existing_logs(self._connection, self.schema, [log_table(log)]):
                return False
            self._connection.execute(sql.SQL(tables.CREATE).format(log=self._table(log), **names))
            for own in ("log_offsets", "log_rejected"):
                statement = sql.SQL("DELETE FROM {} WHERE log = %s").format(sql.Identifier(self.schema, own))
                self._connection.execute(statement, (log,))
        return True

    def can_create(self) -> bool:
        """Says whether the role may create the log's table."""
        with explained():
            row = self._connection.execute(tables.CAN_CREATE, {"schema": self.schema}).fetchone()
        return bool(row and row[0])

    def offsets(self, log: str) -> dict[PartitionId, Loaded]:
        """Returns the place up to which each partition was loaded."""
        return read_offsets(self._connection, self.schema, log)

    def load(self, log: str, batch: EventBatch) -> list[Rejected]:
        """Writes the batch, and returns all of it that is not in the log: records that were rejected before, those that
        PostgreSQL can't hold, and other events with the id of one that the log has. An event that the log has already
        is left out."""
        with explained(), self._connection.transaction():
            rejected = [*batch.rejected, *self._insert(log, batch.rows)]
            for record, reason in rejected:
                headers = [[name, value and base64.b64encode(value).decode()] for name, value in record.headers]
                self._connection.execute(
                    self._sql(tables.REJECT),
                    (
                        *(log, record.topic, record.partition, record.offset, reason),
                        *(record.key, record.value, json.dumps(headers).encode(), record.at_ms),
                    ),
                )
            self._advance(log, batch.offsets)
            if batch.rows:
                self._connection.execute(self._sql("UPDATE {s}.views SET applied_at = now() WHERE name = %s"), (log,))
        return rejected

    def begin(self, log: str, offsets: Mapping[PartitionId, Loaded]) -> None:
        """Records the first offsets of partitions that have no offset yet."""
        with explained(), self._connection.transaction():
            self._advance(log, offsets)

    def _advance(self, log: str, offsets: Mapping[PartitionId, Loaded]) -> None:
        columns = [(topic, partition, *loaded) for (topic, partition), loaded in offsets.items()]
        if columns:
            self._connection.execute(self._sql(tables.ADVANCE), (log, *map(list, zip(*columns, strict=True))))

    def _insert(self, log: str, rows: Sequence[tuple[EventRow, EventRecord]]) -> list[Rejected]:
        if not rows:
            return []
        try:
            with self._connection.transaction():
                there = self._inserted(log, [row for row, _ in rows])
        except psycopg.Error as error:
            if not _is_of_values(error):
                raise
            return self._insert_each(log, rows)
        return [
            Rejected(record, reason)
            for row, record in rows
            if row[:3] not in there and (reason := self._conflict(log, row))
        ]

    def _insert_each(self, log: str, rows: Sequence[tuple[EventRow, EventRecord]]) -> list[Rejected]:
        """Inserts rows one by one, after PostgreSQL refused one of them."""
        rejected = []
        for row, record in rows:
            try:
                with self._connection.transaction():
                    is_there = self._inserted(log, [row])
                reason = None if is_there else self._conflict(log, row)
            except psycopg.Error as error:
                if not _is_of_values(error):
                    raise
                reason = f"PostgreSQL can't hold it: {error_text(error)}"
            if reason is not None:
                rejected.append(Rejected(record, reason))
        return rejected

    def _inserted(self, log: str, rows: Sequence[EventRow]) -> set[tuple[str, int, int]]:
        """Returns topic, partition and offset of those that were not there."""
        statement = sql.SQL(tables.INSERT).format(log=self._table(log))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return set(self._connection.execute(statement, columns).fetchall())

    def _conflict(self, log: str, row: EventRow) -> str | None:
        """Returns why a row was not inserted; None if the log has the event already."""
        statement = sql.SQL(tables.SAME_ID).format(log=self._table(log))
        found = self._connection.execute(statement, row._asdict()).fetchone()
        if found is None or found[2]:
            return None
        return f"another event has the same id: that of partition {found[0]}, offset {found[1]}"

    def reload(self, log: str, starts: Mapping[PartitionId, int]) -> None:
        """Forgets everything that the topics have from `starts` on, and everything of other topics, to load it again.
        Views of the log lose their triggers, so that each is filled again when the log has been loaded."""
        columns = [(topic, partition, start) for (topic, partition), start in starts.items()]
        topics, partitions, numbers = map(list, zip(*columns, strict=True)) if columns else ([], [], [])
        kept = {"log": log, "topics": topics, "partitions": partitions, "starts": numbers}
        table, rejected = self._table(log), sql.Identifier(self.schema, "log_rejected")
        with explained(), brief_locks(self._connection, f"event log {log}"):
            for trigger in self.view_triggers(log):
                name = sql.Identifier(trigger)
                self._connection.execute(sql.SQL("DROP TRIGGER {} ON {}").format(name, table))
            for place, of_log in ((table, sql.SQL("true")), (rejected, sql.SQL("l.log = %(log)s"))):
                self._connection.execute(sql.SQL(tables.FORGET).format(table=place, of_log=of_log), kept)
            self._connection.execute(self._sql("DELETE FROM {s}.log_offsets WHERE log = %s"), (log,))
            # In this transaction, as without offsets nothing says any more which events would stay.
            self._connection.execute(self._sql("UPDATE {s}.views SET state = 'filling' WHERE name = %s"), (log,))

    def note_filled(self, log: str) -> None:
        """Records that the log holds everything that its topics held when loading began."""
        statement = "UPDATE {s}.views SET state = 'serving', filled_at = now() WHERE name = %s AND state = 'filling'"
        with explained():
            self._connection.execute(self._sql(statement), (log,))

    def view_triggers(self, log: str) -> list[str]:
        """Returns the triggers of views on the log's table."""
        with explained():
            found = self._connection.execute(tables.VIEW_TRIGGERS, (self._table(log).as_string(),))
            return [name for (name,) in found]

    def remove(self, log: str) -> None:
        """Removes the log and all records about it. Raises SinkError while views read it."""
        if self.view_triggers(log):
            raise SinkError(
                f"event log {log}: views read it, and their triggers are on its table",
                "remove each of them with cdc view remove, then the log",
            )
        with explained(), brief_locks(self._connection, f"event log {log}"):
            self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(log)))
            self._forget(log)

    def log_counts(self, log: str) -> ViewFacts | None:
        """Returns the state of the log and the number of its rejected records; None if it has never run."""
        return read_log_counts(self._connection, self.schema, log)

    def _table(self, log: str) -> sql.Identifier:
        return sql.Identifier(self.schema, tables.table_of(log))


def _is_of_values(error: psycopg.Error) -> bool:
    """Says whether the values of a row made a statement fail, and no state of the server."""
    return isinstance(error, psycopg.DataError) or (error.sqlstate or "").startswith(_LIMIT_EXCEEDED)

"""Reads the state of event logs from their bases and their topics. Changes nothing there."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig, sink_config
from cdc.model.errors import WatershedError
from watershed.status.view_facts import ViewFacts
from watershed.views.connection import CONNECT_TIMEOUT_S, connect, explained
from watershed.views.event_records import Bounds, EventTopics, Place
from watershed.views.figures import read_counts
from watershed.views.statements import COUNTED_MAX, schema_of


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
        self._topics = EventTopics(settings.kafka, section.topics)

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


def behind(loaded: Mapping[Place, Loaded], bounds: Mapping[Place, Bounds]) -> int:
    """Returns the number of offsets that are not loaded, markers of transactions among them."""
    return sum(
        max(0, one.end - (loaded[place].next if place in loaded else one.start)) for place, one in bounds.items()
    )


def read_offsets(connection: psycopg.Connection[Any], schema: str, log: str) -> dict[Place, Loaded]:
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

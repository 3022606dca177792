"""Statements on the tables of event logs. A log `orders` is table `log_orders` in the schema of the views."""

from collections.abc import Collection
from typing import Any, Final, LiteralString

import psycopg

from cdc.config.event_logs import SCHEMA_OF_LOGS
from cdc.config.views import MINUTES
from cdc.model.events import TableId

CREATE: LiteralString = """
CREATE TABLE {log} (
  topic text NOT NULL, partition integer NOT NULL, no bigint NOT NULL, id text, aggregatetype text, aggregateid text,
  type text, payload jsonb, payload_text text, headers jsonb NOT NULL, at timestamptz,
  PRIMARY KEY (topic, partition, no));
CREATE UNIQUE INDEX {ids} ON {log} (topic, id);
CREATE INDEX {aggregates} ON {log} (aggregateid, no);
"""
# One statement for many rows, as the triggers of views run for each statement. An event that is there is left out.
INSERT: LiteralString = """
INSERT INTO {log} (topic, partition, no, id, aggregatetype, aggregateid, type, payload, payload_text, headers, at)
SELECT topic, partition, no, id, aggregatetype, aggregateid, type, payload::jsonb, payload_text, headers::jsonb,
       timestamptz 'epoch' + at_ms * interval '1 millisecond'
  FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
              %s::text[], %s::text[], %s::bigint[])
       AS new (topic, partition, no, id, aggregatetype, aggregateid, type, payload, payload_text, headers, at_ms)
 ORDER BY topic, partition, no
ON CONFLICT DO NOTHING
RETURNING topic, partition, no
"""
# The event that has the same id, with the answer to whether it is the same event.
SAME_ID: LiteralString = """
SELECT partition, no,
       (aggregatetype, aggregateid, type, payload, payload_text)
       IS NOT DISTINCT FROM (%(aggregatetype)s::text, %(aggregateid)s::text, %(type)s::text, %(payload)s::jsonb,
                             %(payload_text)s::text)
  FROM {log} WHERE topic = %(topic)s AND id = %(id)s
"""
REJECT: LiteralString = """
INSERT INTO {s}.log_rejected (log, topic, partition, no, reason, key, value, headers, at_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (log, topic, partition, no) DO UPDATE SET reason = excluded.reason
"""
ADVANCE: LiteralString = """
INSERT INTO {s}.log_offsets (log, topic, partition, topic_id, next)
SELECT %s, * FROM unnest(%s::text[], %s::integer[], %s::text[], %s::bigint[])
ON CONFLICT (log, topic, partition) DO UPDATE SET next = excluded.next
"""
# The topics' records from these offsets on are loaded again. Rows of those before stay: no topic has them any more.
FORGET: LiteralString = """
DELETE FROM {table} l
 WHERE {of_log} AND NOT EXISTS (
       SELECT FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[])
                   AS k (topic, partition, start)
        WHERE k.topic = l.topic AND k.partition = l.partition AND l.no < k.start)
"""
# The triggers of views. A view without them is filled again, as soon as the log has been loaded.
VIEW_TRIGGERS: LiteralString = """
SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal AND tgname ~ '^watershed_' ORDER BY 1
"""
CAN_CREATE: LiteralString = """
SELECT CASE WHEN to_regnamespace(%(schema)s) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(%(schema)s, 'CREATE') END
"""
_EXISTING: LiteralString = """
SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(format('%%I.%%I', %s::text, name)) IS NOT NULL
"""
_BEGINNING: Final = "log_"


def table_of(log: str) -> str:
    """Returns the name of the log's table in the views' schema."""
    return f"{_BEGINNING}{log}"


def existing_logs(
    connection: psycopg.Connection[Any], schema: str, kept: Collection[TableId]
) -> dict[TableId, tuple[str, str]]:
    """Returns the tables of those logs among `kept` that have been created, and that of the clock."""
    tables = {table_of(table.name): table for table in kept if table.schema == SCHEMA_OF_LOGS}
    tables |= {MINUTES.name: MINUTES} if MINUTES in kept else {}
    found = connection.execute(_EXISTING, ([*tables], schema)).fetchall() if tables else []
    return {tables[name]: (schema, name) for (name,) in found}

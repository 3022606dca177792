"""Reads a real server's log through the SQL interface of logical decoding, and its tables through COPY, as records."""

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from cdc.formats.records import EnvelopeContext, OutRecord, TableEncoder
from cdc.model.events import TableId, TableSchema
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import UNCHANGED, Begin, Commit, Message, Relation, Type, Update
from cdc.pgoutput.relations import relation_of
from cdc.postgres.catalog import read_table

THINGS = TableId("public", "things")
CONTEXT = EnvelopeContext("shop", "shop", 1, "0.1.0")


@dataclass
class Source:
    """A database whose table `things` is published. The connection is capture's own, with its settings."""

    connection: psycopg.Connection
    schema: TableSchema = field(init=False)
    received: list[Message] = field(default_factory=list)  # by the last call of `records`

    def publish(self) -> None:
        """Everything from here on is in the log."""
        self.connection.execute("CREATE PUBLICATION everything FOR TABLE things")
        self.connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        found = read_table(self.connection, THINGS, None)
        self.schema = TableSchema(THINGS, 1, found.oid, found.columns, found.key, "shop.public.things")

    def messages(self) -> list[tuple[int, bytes, Message]]:
        """(lsn, bytes, decoded) of what the log holds since the last call."""
        found = self.connection.execute(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_binary_changes(current_database(), NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'everything')"
        ).fetchall()
        return [(int(lsn), data, decode(data, str(lsn))) for lsn, data in found]

    def records(self) -> list[OutRecord]:
        """The records of what the log holds since the last call."""
        out: list[OutRecord] = []
        self.received.clear()
        encoder: TableEncoder | None = None
        begin: Begin | None = None
        index = 0
        for lsn, data, message in self.messages():
            self.received.append(message)
            match message:
                case Begin():
                    begin, index = message, 0
                case Relation():
                    encoder = TableEncoder(self.schema, message, CONTEXT)
                case Commit():
                    assert begin is not None
                    assert message.commit_lsn == begin.final_lsn
                    assert message.commit_ts_us == begin.commit_ts_us
                case Type():
                    pass
                case _:
                    assert encoder is not None
                    assert begin is not None
                    encoder.start_transaction(begin.final_lsn, begin.commit_ts_us, begin.xid, None)
                    out += encoder.encode(data, 0, lsn, index, len(out), 17)
                    index += 1
        return out

    def copied(self) -> list[OutRecord]:
        """The records of the table's rows by COPY, in key order."""
        encoder = TableEncoder(self.schema, relation_of(self.schema), CONTEXT)
        encoder.start_snapshot(1, 2)
        columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in self.schema.columns)
        statement = sql.SQL("COPY (SELECT {} FROM things ORDER BY id) TO STDOUT").format(columns)
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            return [encoder.copy_row(bytes(line), 1, i, i, 17) for i, line in enumerate(copy)]


def part(record: OutRecord, name: str) -> Any:
    assert isinstance(record[1], bytes)
    return json.loads(record[1])[name]


def bytes_of_row(record: OutRecord) -> bytes:
    """The bytes of `after`."""
    assert isinstance(record[1], bytes)
    head, separator, _ = record[1].partition(b',"source":{"version":')
    assert separator
    assert head.startswith(b'{"before":null,"after":')
    return head


def holes(messages: list[Message]) -> int:
    """How many values were not sent."""
    return sum(message.new.count(UNCHANGED) for message in messages if isinstance(message, Update))

"""Events in the stream: rows of outbox tables, and messages, in commit order among the changes of tables.

An event takes a `tx_index` like a row change, so that the published part of a transaction is skipped when it is sent
again. It takes no `seq`, which numbers rows.
"""

import warnings
from collections.abc import Sequence
from functools import partial

from cdc.config.format_options import FormatOptions
from cdc.config.outbox_settings import OutboxMessages, OutboxTable
from cdc.formats.records import context_headers
from cdc.formats.utf8 import not_utf8
from cdc.model.control import PartialTransaction
from cdc.model.errors import GapError, ProtocolError, SourceError, UnsupportedChangeError
from cdc.model.events import Column, Position, TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.outbox.column_readers import readers_of
from cdc.outbox.dead_letters import DeadLetterFactory
from cdc.outbox.message_reader import COLUMNS, KEY, read_message
from cdc.outbox.router import Contract, Router
from cdc.outbox.seal import SealKey
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import UNCHANGED, Absent, Delete, Insert, LogicalMessage, Tuple, TupleValue, Update

Places = Sequence[int | None] | None


class OutboxWarning(UserWarning):
    """An unexpected change that was left out. Shown once for each kind."""


def message_prefix(outbox: "OutboxStream | None", partial: PartialTransaction | None) -> str | None:
    """Returns the prefix of the logical messages that are events; None if there are none. `partial`: the half published
    transaction, whose messages were counted with its prefix. Raises GapError if the prefix is another one now."""
    prefix = outbox.message_prefix if outbox is not None else None
    if partial is not None and partial.outbox != (prefix or ""):
        raise GapError(
            f"a transaction was partly published with outbox.messages.prefix {partial.outbox or 'unset'}",
            "start with the former configuration until it is finished, then change outbox.messages",
        )
    return prefix


class OutboxStream:
    """Makes the records of events for the assembler. It keeps no state of a transaction."""

    def __init__(
        self,
        prefix: str,
        tables: Sequence[OutboxTable],
        sealed: tuple[OutboxMessages, SealKey] | None,
        options: FormatOptions,
        contract: Contract | None = None,
        *,
        promises_utf8: bool = False,
    ) -> None:
        """`prefix`: that of the topics. `contract`: None if events may have any payload. `promises_utf8`: see
        EnvelopeContext. Raises SourceError for messages that can't be routed."""
        self._promises_utf8 = promises_utf8
        self._prefix = prefix
        self._tables = {TableId.parse(table.table): table for table in tables}
        self._options = options
        self._contract = contract
        self._routers: dict[int, tuple[TableSchema, OutboxTable, Router]] = {}
        self._places: dict[int, Places] = {}  # by relation, of what the server sends
        self._dead_letters = Topics(prefix).outbox_dead_letters  # of messages; those of a table go to its own topic
        self._sealed = sealed
        self._router = self._made(sealed[0].prefix, sealed[0], COLUMNS, KEY, sealed[0].prefix) if sealed else None

    def _made(
        self,
        where: str,
        routing: OutboxTable | OutboxMessages,
        columns: Sequence[Column],
        key: Sequence[str],
        schema_name: str,
    ) -> Router:
        readers = readers_of(where, columns, key, self._options)
        context = context_headers(self._prefix) if self._options.has_context_headers else ()
        return Router(where, routing, readers, schema_name, self._prefix, context, self._contract)

    @property
    def message_prefix(self) -> str | None:
        """The prefix of the logical messages that are events; None if there are none."""
        return self._sealed[0].prefix if self._sealed is not None else None

    def event(
        self, what: memoryview | LogicalMessage, xid: int, position: Position, now_us: int, commit_ts_us: int
    ) -> list[TopicRecord]:
        if isinstance(what, LogicalMessage):
            return self.message(what, xid, position, now_us, commit_ts_us)
        return self.row(what, position, now_us, commit_ts_us)

    # ---- tables

    def takes(self, table: TableId) -> bool:
        return table in self._tables

    def describe(self, oid: int, schema: TableSchema, places: Places = None) -> None:
        """Sets the table and schema of a relation. `places`: see sent_places; None: all columns are captured. Raises
        SourceError for a table that can't be routed."""
        table = self._tables[schema.table]
        name = f"{self._prefix}.{schema.table.schema}.{schema.table.name}"
        router = self._made(str(schema.table), table, schema.columns, schema.key, name)
        self._routers[oid], self._places[oid] = (schema, table, router), places

    def describe_again(self, oid: int, schema: TableSchema, places: Places = None) -> None:
        """Does the same while streaming, where a table that can't be routed stops alone. Raises
        UnsupportedChangeError."""
        try:
            self.describe(oid, schema, places)
        except SourceError as error:
            raise UnsupportedChangeError(error.message, error.hint, table=schema.table, is_held=False) from error

    def follows(self, oid: int) -> bool:
        """Returns whether the relation was described as an outbox table."""
        return oid in self._routers

    def row(self, change: memoryview, position: Position, now_us: int, commit_ts_us: int) -> list[TopicRecord]:
        """Returns the records of a row change, which begins at its I, U or D byte: one for an insert or for an update
        of the event's id, none for a delete. Raises ProtocolError; UnsupportedChangeError for another update if it is
        configured as fatal."""
        oid = int.from_bytes(change[1:5], "big")
        schema, table, router = self._routers[oid]
        former = None
        match decode(change, str(position)):
            case Insert(new=sent):
                new = self._captured(oid, sent)
            case Update(old=sent_old, new=sent) if sent_old is not None and not router.is_same_event(
                self._captured(oid, sent_old), self._captured(oid, sent)
            ):
                # Such an update deletes one event and inserts another
                new = self._captured(oid, sent)
                former = self._texts(self._captured(oid, sent_old), schema.table, position)
            case Update():
                if table.table_op_invalid_behavior == "fatal":
                    raise UnsupportedChangeError(
                        f"outbox table {schema.table} at {position}: a row was updated",
                        "events are inserted, never changed; table.op.invalid.behavior: warn ignores updates",
                        table=schema.table,
                    )
                text = f"{schema.table}: a row was updated; its event was published when it was inserted"
                warnings.warn(text, OutboxWarning, stacklevel=2)
                return []
            case Delete():
                return []
            case other:
                raise ProtocolError(f"unexpected {type(other).__name__} at {position}")
        if len(new) != len(schema.columns):
            raise ProtocolError(f"{schema.table} at {position}: {len(new)} columns, not {len(schema.columns)}")
        row = self._texts(new, schema.table, position)
        event = dict(zip((column.name for column in schema.columns), row, strict=True))
        dead_letters = DeadLetterFactory(schema.topic, str(schema.table), position, now_us, event)
        if UNCHANGED in new:
            return [dead_letters.record(None, "an update left a large value unchanged, so it is not in the log")]
        return [router.route(row, dead_letters, commit_ts_us, former=former)]

    def _captured(self, oid: int, sent: Tuple) -> Tuple:
        """Returns the values of the columns that leave the source, of those that the server sends."""
        places = self._places[oid]
        if places is None or len(places) != len(sent):  # another number is an error, which the caller reports
            return sent
        return tuple(value for value, place in zip(sent, places, strict=True) if place is not None)

    def _texts(self, values: Tuple, table: TableId, position: Position) -> list[str | None]:
        return [_text(value, table, position, promises_utf8=self._promises_utf8) for value in values]

    # ---- messages

    def message(
        self, message: LogicalMessage, xid: int, position: Position, now_us: int, commit_ts_us: int
    ) -> list[TopicRecord]:
        """Returns the record of a transactional message with our prefix."""
        assert self._sealed is not None and self._router is not None
        routing, key = self._sealed
        dead_letters = partial(DeadLetterFactory, self._dead_letters, routing.prefix, position, now_us)
        content = key.open(message.content, xid)
        if content is None:
            reason = "it was not written by the function that publishes events"
            return [dead_letters(message.content).record(None, reason)]
        found = read_message(content)
        if isinstance(found, str):
            return [dead_letters(content).record(None, found)]
        event = dict(zip((column.name for column in COLUMNS), found.row, strict=True))
        return [self._router.route(found.row, dead_letters(event), commit_ts_us, more=found.headers)]


def _text(value: TupleValue, table: TableId, position: Position, *, promises_utf8: bool) -> str | None:
    if isinstance(value, Absent):
        return None
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(table, position, value, error, promises_utf8=promises_utf8) from None

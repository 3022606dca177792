"""Events in the stream: rows of outbox tables, and messages, in commit order among the changes of tables.

An event takes a `tx_index` like a row change, so that the published part of a transaction is skipped when it is sent
again. It takes no `seq`, which numbers rows.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc.config.format_options import FormatOptions
from cdc.config.outbox_settings import OutboxMessages, OutboxTable, Routing
from cdc.formats.records import context_headers
from cdc.formats.utf8 import not_utf8
from cdc.model.control import PartialTransaction
from cdc.model.errors import GapError, ProtocolError, SourceError, UnsupportedChangeError
from cdc.model.events import Position, TableId, TableSchema
from cdc.model.topic_record import EventDestination, TopicRecord
from cdc.outbox.column_readers import readers_of
from cdc.outbox.dead_letters import RefusedEvent, dead_letter
from cdc.outbox.message_reader import COLUMNS, KEY, read_message
from cdc.outbox.router import Contract, Event, EventRow, Fields, Format, Header, Rejected, Router
from cdc.outbox.seal import SealKey
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import UNCHANGED, Absent, Delete, Insert, LogicalMessage, Tuple, TupleValue, Update


class OutboxWarning(UserWarning):
    """An unexpected change that was left out. Shown once for each kind."""


def no_contract(event_type: str, payload: str | None) -> str | None:  # noqa: ARG001
    """The contract that accepts every payload."""
    return None


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


@dataclass(frozen=True, slots=True)
class Payloads:
    """The forms of events' payloads, and the contract that they must match."""

    contract: Contract = no_contract
    forms: Mapping[str, Format] = field(default_factory=dict)  # formats other than Debezium's, by name


class OutboxStream:
    """Makes the records of events for the assembler. It keeps no state of a transaction."""

    def __init__(
        self,
        prefix: str,
        tables: Sequence[OutboxTable],
        sealed: tuple[OutboxMessages, SealKey] | None,
        dead_letters: str,
        options: FormatOptions,
        payloads: Payloads | None = None,
        *,
        promises_utf8: bool = False,
    ) -> None:
        """`prefix`: that of the topics. `dead_letters`: the topic for dead letters of messages; those of a table go to
        its own topic. `promises_utf8`: see EnvelopeContext. Raises SourceError for messages that can't be routed."""
        self._promises_utf8 = promises_utf8
        self._prefix = prefix
        self._tables = {TableId.parse(table.table): table for table in tables}
        self._options = options
        self._payloads = payloads or Payloads()
        self._routers: dict[int, tuple[TableSchema, OutboxTable, Router]] = {}
        self._dead_letters = dead_letters
        self._sealed = sealed
        self._router: Router | None = None
        if sealed is not None:
            routing = sealed[0]
            readers = readers_of(TableId("", routing.prefix), COLUMNS, KEY, options)
            fields = Fields("id", "aggregateid", "payload", "type")
            self._router = self._made(routing.prefix, routing, EventRow(fields, readers, routing.prefix))

    def _made(self, where: str, routing: Routing, row: EventRow) -> Router:
        context: tuple[Header, ...] = ()
        if self._options.has_context_headers:
            context = tuple(context_headers(self._prefix))
        form = self._payloads.forms[routing.format] if routing.format != "debezium" else None
        return Router(where, routing, row, self._payloads.contract, form, context)

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

    def describe(self, oid: int, schema: TableSchema) -> None:
        """Sets the table and schema of a relation. Raises SourceError for a table that can't be routed."""
        table = self._tables[schema.table]
        readers = readers_of(schema.table, schema.columns, schema.key, self._options)
        fields = Fields(
            table.table_field_event_id,
            table.table_field_event_key,
            table.table_field_event_payload,
            table.table_field_event_type,
            table.table_field_event_timestamp,
            table.table_field_event_schema_version,
        )
        name = f"{self._prefix}.{schema.table.schema}.{schema.table.name}"
        self._routers[oid] = schema, table, self._made(str(schema.table), table, EventRow(fields, readers, name))

    def describe_again(self, oid: int, schema: TableSchema) -> None:
        """Does the same while streaming, where a table that can't be routed stops alone. Raises
        UnsupportedChangeError."""
        try:
            self.describe(oid, schema)
        except SourceError as error:
            raise UnsupportedChangeError(error.message, error.hint, table=schema.table, is_held=False) from error

    def follows(self, oid: int) -> bool:
        """Returns whether the relation was described as an outbox table."""
        return oid in self._routers

    def row(self, change: memoryview, position: Position, now_us: int, commit_ts_us: int) -> list[TopicRecord]:
        """Returns the records of a row change, which begins at its I, U or D byte: one for an insert or for an update
        of the event's id, none for a delete. Raises ProtocolError; UnsupportedChangeError for another update if it is
        configured as fatal."""
        schema, table, router = self._routers[int.from_bytes(change[1:5], "big")]
        former = None
        match decode(change, str(position)):
            case Insert(new=new):
                pass
            case Update(old=old, new=new) if old is not None and not router.is_same_event(old, new):
                # Such an update deletes one event and inserts another
                former = self._texts(old, schema.table, position)
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
        routed: Event | Rejected
        if UNCHANGED in new:
            routed = Rejected("an update left a large value unchanged, so it is not in the log", None)
        else:
            routed = router.route(row, now_us, commit_ts_us, former=former)
        names = [column.name for column in schema.columns]
        return [self._record(routed, str(schema.table), schema.topic, position, names, row, now_us)]

    def _texts(self, values: Tuple, table: TableId, position: Position) -> list[str | None]:
        return [_text(value, table, position, promises_utf8=self._promises_utf8) for value in values]

    # ---- messages

    def message(
        self, message: LogicalMessage, xid: int, position: Position, now_us: int, commit_ts_us: int
    ) -> list[TopicRecord]:
        """Returns the record of a transactional message with our prefix."""
        assert self._sealed is not None and self._router is not None
        routing, key = self._sealed
        content = key.open(message.content, xid)
        if content is None:
            reason = "it was not written by the function that publishes events"
            foreign = RefusedEvent(routing.prefix, position, foreign=message.content)
            return [dead_letter(self._dead_letters, foreign, reason, now_us)]
        found = read_message(content)
        if isinstance(found, str):
            foreign = RefusedEvent(routing.prefix, position, foreign=content)
            return [dead_letter(self._dead_letters, foreign, found, now_us)]
        routed = self._router.route(found.row, now_us, commit_ts_us, more=found.headers)
        names = [column.name for column in COLUMNS]
        return [self._record(routed, routing.prefix, self._dead_letters, position, names, found.row, now_us)]

    def _record(
        self,
        routed: Event | Rejected,
        source: str,
        dead_letters: str,
        position: Position,
        names: Sequence[str],
        row: Sequence[str | None],
        now_us: int,
    ) -> TopicRecord:
        def refused(reason: str) -> TopicRecord:
            event = RefusedEvent(source, position, routed.id, dict(zip(names, row, strict=True)))
            return dead_letter(dead_letters, event, reason, now_us)

        if isinstance(routed, Rejected):
            return refused(routed.reason)
        if routed.topic.startswith(f"{self._prefix}."):
            return refused(f"topics that begin with {self._prefix}. are reserved for capture")
        destination = EventDestination(
            routed.partition, routed.timestamp_ms, has_key=routed.key is not None, refused=refused
        )
        return TopicRecord(routed.topic, routed.key or b"", routed.value, [*routed.headers], destination)


def _text(value: TupleValue, table: TableId, position: Position, *, promises_utf8: bool) -> str | None:
    if isinstance(value, Absent):
        return None
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(table, position, value, error, promises_utf8=promises_utf8) from None

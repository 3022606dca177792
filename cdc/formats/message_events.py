"""Logical messages (pg_logical_emit_message) as Debezium's events of op `m`:

    {"prefix":"audit"}
    {"op":"m","ts_ms":1767323080000,"source":{…,"schema":"","table":"","txId":560,"lsn":24026000,…},"transaction":null,
     "message":{"prefix":"audit","content":"aGVsbG8="}}

The content has the form of `binary.handling.mode`, base64 by default. Watershed's own fields of `source` are null
except `epoch`, and `commit_lsn` if the message is part of a transaction: a message has no version.
"""

import base64
import re
from dataclasses import dataclass

from cdc.formats import connect
from cdc.formats.envelope import EnvelopeContext
from cdc.pgoutput.messages import LogicalMessage, Origin


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """The place of a message in the source."""

    lsn: int
    last_commit_lsn: int | None  # of the transaction before; None if this session has seen none
    # of the message's own transaction; None if it is in none
    commit_lsn: int | None = None
    commit_ts_us: int | None = None
    xid: int | None = None
    origin: Origin | None = None


class MessageEvents:
    """Makes message events for one run."""

    def __init__(self, context: EnvelopeContext) -> None:
        self._context = context
        self._include = context.format.message_prefix_include_list
        self._exclude = context.format.message_prefix_exclude_list
        self._key_head, self._value_head, self._end = "", "", ""
        if context.format.schemas_enable:
            is_text = context.format.profile == "readable" or context.format.binary_handling_mode not in (None, "bytes")
            self._key_head = f'{{"schema":{connect.dumps(connect.MESSAGE_KEY)},"payload":'
            value = connect.message_schema(connect.STRING if is_text else connect.BYTES)
            self._value_head = f'{{"schema":{connect.dumps(value)},"payload":'
            self._end = "}"

    def publishes(self, prefix: str) -> bool:
        """Says whether messages of this prefix are published; patterns match the whole prefix."""
        if self._include and not any(re.fullmatch(pattern, prefix) for pattern in self._include):
            return False
        return not any(re.fullmatch(pattern, prefix) for pattern in self._exclude)

    def record(
        self, message: LogicalMessage, place: MessagePosition, transaction: str, now_us: int
    ) -> tuple[bytes, bytes]:
        """(key, value). `transaction`: the block of its metadata, or null; `now_us`: our clock, µs since 1970."""
        prefix = connect.dumps(message.prefix)
        content = connect.dumps(self._content(message.content))
        value = (
            f'{self._value_head}{{"op":"m","ts_ms":{now_us // 1000},"source":{self._source(place, now_us)},'
            f'"transaction":{transaction},"message":{{"prefix":{prefix},"content":{content}}}}}{self._end}'
        )
        key = f'{self._key_head}{{"prefix":{prefix}}}{self._end}'
        return key.encode("latin-1"), value.encode("latin-1")

    def _source(self, place: MessagePosition, now_us: int) -> str:
        context = self._context
        ts_us = now_us if place.commit_ts_us is None else place.commit_ts_us
        last = None if place.last_commit_lsn is None else str(place.last_commit_lsn)
        block = {
            "version": context.connector_version,
            "connector": "postgresql",
            "name": context.prefix,
            "ts_ms": ts_us // 1000,
            "snapshot": "false",
            "db": context.database,
            "sequence": connect.dumps([last, str(place.lsn)]),
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "schema": "",
            "table": "",
            "txId": place.xid,
            "lsn": place.lsn,
            "xmin": None,
            "origin": place.origin.name if place.origin else None,
            "origin_lsn": place.origin.commit_lsn if place.origin else None,
            "epoch": context.epoch,
            "seq": None,
            "commit_lsn": place.commit_lsn,
            "tx_index": None,
            "schema_version": None,
        }
        return connect.dumps(block)

    def _content(self, content: bytes) -> str:
        match self._context.format.binary_handling_mode:
            case "hex":
                return content.hex()
            case "base64-url-safe":
                return base64.urlsafe_b64encode(content).decode()
            case _:
                return base64.b64encode(content).decode()

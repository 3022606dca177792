"""Logical messages (pg_logical_emit_message) as Debezium's events of op `m`:

    {"prefix":"audit"}
    {"op":"m","ts_ms":1767323080000,"source":{…,"schema":"","table":"","txId":560,"lsn":24026000,…},"transaction":null,
     "message":{"prefix":"audit","content":"aGVsbG8="}}

The content has the form of `binary.handling.mode`, base64 by default. Watershed's own fields of `source` are null
except `epoch`, and `commit_lsn` if the message is part of a transaction: a message has no version.
"""

import re

from cdc.formats import connect
from cdc.formats.debezium_values import bytes_as
from cdc.formats.records import EnvelopeContext
from cdc.pgoutput.messages import Begin, LogicalMessage, ReplicationOrigin


class MessageEvents:
    """Makes message events for one run."""

    def __init__(self, context: EnvelopeContext) -> None:
        self._context = context
        self._include = context.format.message_prefix_include_list
        self._exclude = context.format.message_prefix_exclude_list
        mode = context.format.binary_handling_mode or "bytes"
        self._content = bytes_as(mode)
        node = connect.STRING if context.format.profile == "readable" or mode != "bytes" else connect.BYTES
        self._converter = connect.Converter(
            connect.MESSAGE_KEY, connect.message_schema(node), schemas_enable=context.format.schemas_enable
        )

    def publishes(self, prefix: str) -> bool:
        """Says whether messages of this prefix are published; patterns match the whole prefix."""
        if self._include and not any(re.fullmatch(pattern, prefix) for pattern in self._include):
            return False
        return not any(re.fullmatch(pattern, prefix) for pattern in self._exclude)

    def record(
        self,
        message: LogicalMessage,
        transaction: Begin | None,
        origin: ReplicationOrigin | None,
        last_commit_lsn: int | None,
        metadata: str,
        now_us: int,
    ) -> tuple[bytes, bytes]:
        """Returns (key, value). `transaction` and `origin`: None outside of transactions. `last_commit_lsn`: of the
        transaction before; None if this session has seen none. `metadata`: the block of the transaction's metadata, or
        null. `now_us`: our clock, µs since 1970."""
        prefix = connect.dumps(message.prefix)
        content = self._content(message.content)
        ts_us = transaction.commit_ts_us if transaction else now_us
        last = None if last_commit_lsn is None else str(last_commit_lsn)
        source = {
            "version": self._context.connector_version,
            "connector": "postgresql",
            "name": self._context.prefix,
            "ts_ms": ts_us // 1000,
            "snapshot": "false",
            "db": self._context.database,
            "sequence": connect.dumps([last, str(message.lsn)]),
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "schema": "",
            "table": "",
            "txId": transaction.xid if transaction else None,
            "lsn": message.lsn,
            "xmin": None,
            "origin": origin.name if origin else None,
            "origin_lsn": origin.commit_lsn if origin else None,
            "epoch": self._context.epoch,
            "seq": None,
            "commit_lsn": transaction.final_lsn if transaction else None,
            "tx_index": None,
            "schema_version": None,
        }
        return self._converter.record(
            f'{{"prefix":{prefix}}}',
            f'{{"op":"m","ts_ms":{now_us // 1000},"source":{connect.dumps(source)},'
            f'"transaction":{metadata},"message":{{"prefix":{prefix},"content":{content}}}}}',
        )

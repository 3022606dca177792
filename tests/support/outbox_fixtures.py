"""Reads tests/fixtures/outbox: records that Debezium's event router made (see its README)."""

import json
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.config.format_options import FormatOptions
from cdc.config.outbox_settings import OutboxTable
from cdc.model.events import Column, Position, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.outbox.event_stream import OutboxStream
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import Begin, Commit, Delete, Insert, Relation, Truncate, Type, Update

FOLDER = Path(__file__).parent.parent / "fixtures" / "outbox"
NOW_US = 1_767_323_080_000_123


@dataclass(frozen=True)
class Recorded:
    """One record of Debezium's."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    timestamp_ms: int


@dataclass(frozen=True)
class Fixture:
    """One combination of options."""

    name: str
    content: dict[str, Any]

    @property
    def records(self) -> list[Recorded]:
        return [
            Recorded(
                r["topic"],
                _bytes(r["key"]),
                _bytes(r["value"]),
                tuple((name, _bytes(value)) for name, value in r["headers"]),
                r["partition"],
                r["timestamp"],
            )
            for r in self.content["records"]
        ]

    @property
    def options(self) -> dict[str, Any]:
        """In the form of the configuration file."""
        converters = {name: self.content[name] for name in ("key.converter", "value.converter", "schemas.enable")}
        return {"table": "public.outbox", **self.content["options"], **converters}

    @property
    def schema(self) -> TableSchema:
        columns = tuple(Column(name, oid, modifier, kind, nullable) for name, oid, modifier, kind, nullable
                        in self.content["columns"])  # fmt: skip
        key = tuple(self.content["key"])
        return TableSchema(TableId("public", "outbox"), 1, 1, columns, key, "shop.public.outbox")

    def routed(self) -> list[TopicRecord]:
        """What our router makes of the same log."""
        options = FormatOptions(extended_headers_enabled=self.content["extended.headers.enabled"])
        outbox = OutboxStream("shop", [OutboxTable.model_validate(self.options)], None, options)
        made: list[TopicRecord] = []
        for index, frame in enumerate(self.content["frames"]):
            frame = b64decode(frame)
            match decode(frame, f"frame {index}"):
                case Relation() as relation:
                    outbox.describe(relation.oid, self.schema)
                case Insert() | Update() | Delete():
                    made += outbox.row(memoryview(frame), Position(Lsn(1), index), NOW_US, NOW_US)
                case Begin() | Commit() | Type() | Truncate():
                    pass
        return made


def fixtures() -> list[Fixture]:
    return [Fixture(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.json"))]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)

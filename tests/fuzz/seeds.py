"""What mutation starts from: messages that a real server sent, and some that it sends seldom."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc.model.control import SchemaRecord
from cdc.model.events import TableSchema
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Relation
from tests.support import wire

RECORDED: Final = Path(__file__).with_name("recorded.json")  # made by tests.fuzz.record


@dataclass(frozen=True)
class TableSeeds:
    """A table as it was described, the messages of its rows, and lines of COPY."""

    schema: TableSchema
    relation: Relation
    messages: tuple[bytes, ...]  # I, U and D
    lines: tuple[bytes, ...]


@dataclass(frozen=True)
class Seeds:
    tables: tuple[TableSeeds, ...]
    others: tuple[bytes, ...]  # messages that are no rows, of every kind


def load() -> Seeds:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    tables = []
    others = [bytes.fromhex(message) for message in recorded["others"]]
    for table in recorded["tables"]:
        schema = SchemaRecord.decode(json.dumps(table["schema"]).encode(), str(RECORDED)).table_schema_of()
        for messages in (table["messages"], table["messages_full"]):
            made = _table(schema, [bytes.fromhex(message) for message in messages], table)
            tables.append(made)
            others.append(wire.relation_bytes(made.relation))
    others += [
        b"Y\0\0@\1public\0mood\0",
        b"A\0\0\0\5\0\0\0\6",
        wire.truncate([16385, 7], 3),
        wire.logical_message("prefix", b"content"),
    ]
    return Seeds(tuple(tables), tuple(dict.fromkeys(others)))


def _table(schema: TableSchema, messages: list[bytes], recorded: dict[str, Any]) -> TableSeeds:
    relation = next(
        found for found in (decode(m, "") for m in messages if m[:1] == b"R") if isinstance(found, Relation)
    )
    rows = [message for message in messages if message[:1] in b"IUD"]
    width = len(schema.columns)
    odd = [
        wire.update(schema.oid, [b"1", *[UNCHANGED] * (width - 1)]),
        wire.insert(schema.oid, [b"1", *[NULL] * (width - 2), b"\0\1"]),
        wire.insert(schema.oid, [b"1", *[b"\xff"] * (width - 1)]),
    ]
    if schema.oid % 8:  # seldom: a seed that is refused has mutants that are refused
        odd = []
    lines = [bytes.fromhex(line) for line in recorded["lines"]]
    return TableSeeds(schema, relation, (*rows, *odd), tuple(lines))

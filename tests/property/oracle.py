"""What the records of a row change are, said as plainly as possible: whole messages decoded, a dict for each row, real
strings, json.dumps. Shares the decoder with the product, but no rule of values or envelope."""

import base64
import json
import string
from typing import Any

from cdc.formats.records import EnvelopeContext, OutRecord
from cdc.model.errors import ProtocolError, UnsupportedChangeError
from cdc.model.events import Column, TableSchema
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Delete, Insert, Relation, TupleValue, Update

SPACES = " \t\n\r\v\f"


class Number(str):
    """A number as PostgreSQL prints it: json.dumps would print a float its own way."""


class RefusedTextError(ProtocolError):
    """The text is not its type's."""


# ---- values


def json_value(column: Column, text: str) -> Any:
    oid = column.base_type_oid or column.type_oid
    if column.element_oid:
        return array_value(column.element_oid, text, column.delimiter)
    return scalar_value(oid, text)


def scalar_value(oid: int, text: str) -> Any:
    match oid:
        case 16:
            if text not in ("t", "f"):
                raise RefusedTextError("boolean")
            return text == "t"
        case 20 | 21 | 23 | 26:
            if not text.isascii() or not text.removeprefix("-").isdigit() or str(int(text)) != text:
                raise RefusedTextError("integer")
            return int(text)
        case 700 | 701:
            if text in ("NaN", "Infinity", "-Infinity"):
                return text
            try:
                if set(text) <= set("0123456789+-.e"):
                    json.loads(text)
                    return Number("-0.0" if text == "-0" else text)
            except json.JSONDecodeError:
                pass
            raise RefusedTextError("float")
        case 17:
            digits = text[2:]
            if text[:2] != "\\x" or len(digits) % 2 or not set(digits) <= set(string.hexdigits):
                raise RefusedTextError("bytea")
            return base64.b64encode(bytes.fromhex(digits)).decode()
        case 1082:
            if text in ("infinity", "-infinity") or is_date(text.removesuffix(" BC"), 7):
                return text
            raise RefusedTextError("date")
        case 1114 | 1184:
            return timestamp_value(text, has_zone=oid == 1184)
        case _:
            return text


def is_digits(text: str, length: range) -> bool:
    return len(text) in length and set(text) <= set(string.digits)


def is_date(text: str, year_digits_max: int) -> bool:
    parts = text.split("-")
    return (
        len(parts) == 3
        and is_digits(parts[0], range(4, year_digits_max + 1))
        and all(is_digits(p, range(2, 3)) for p in parts[1:])
    )


def timestamp_value(text: str, *, has_zone: bool) -> str:
    if text in ("infinity", "-infinity"):
        return text
    body = text.removesuffix(" BC")
    if has_zone:
        if not body.endswith("+00"):
            raise RefusedTextError("zone")
        body = body[:-3]
    date, blank, time = body.partition(" ")
    clock, point, fraction = time.partition(".")
    parts = clock.split(":")
    if not (blank and is_date(date, 6) and len(parts) == 3 and all(is_digits(p, range(2, 3)) for p in parts)):
        raise RefusedTextError("timestamp")
    if point and not is_digits(fraction, range(1, 7)):
        raise RefusedTextError("fraction")
    if len(date) > len("2024-01-31") or text.endswith(" BC"):
        return text
    return f"{date}T{time}{'Z' if has_zone else ''}"


def array_value(element_oid: int, text: str, delimiter: str) -> Any:
    if text == "{}":
        return []
    if text.startswith("["):
        subscripts, equals, body = text.partition("=")
        pairs = subscripts[1:-1].split("][")
        for pair in pairs:
            low, colon, high = pair.partition(":")
            if not (colon and is_digits(low.removeprefix("-"), range(1, 99))):
                raise RefusedTextError("subscript")
            if not is_digits(high.removeprefix("-"), range(1, 99)):
                raise RefusedTextError("subscript")
        if not (equals and subscripts.endswith("]") and len(pairs) <= 6 and body[:1] == "{" and body[1:][-1:] == "}"):
            raise RefusedTextError("subscripts")
        return text
    value, end = read_array(element_oid, text, 0, delimiter)
    if end != len(text):
        raise RefusedTextError("text after the array")
    if not 1 <= len(shape(value)) <= 6:
        raise RefusedTextError("dimensions")
    return value


def read_array(element_oid: int, text: str, start: int, delimiter: str) -> tuple[list[Any], int]:
    """The array whose brace is at `start`, and where it ends."""
    if text[start : start + 1] != "{":
        raise RefusedTextError("brace")
    items: list[Any] = []
    place = start + 1
    while True:
        if text[place : place + 1] == "{":
            item, place = read_array(element_oid, text, place, delimiter)
        else:
            item, place = read_element(element_oid, text, place, delimiter)
        items.append(item)
        follows = text[place : place + 1]
        place += 1
        if follows == "}":
            return items, place
        if follows != delimiter:
            raise RefusedTextError("delimiter")


def read_element(element_oid: int, text: str, place: int, delimiter: str) -> tuple[Any, int]:
    if text[place : place + 1] == '"':
        place += 1
        characters = []
        while place < len(text) and text[place] != '"':
            if text[place] == "\\":
                place += 1
            characters.append(text[place : place + 1])
            place += 1
        if place >= len(text):
            raise RefusedTextError("quote")
        return scalar_value(element_oid, "".join(characters)), place + 1
    end = place
    while end < len(text) and text[end] not in '{}"\\' + delimiter + SPACES:
        end += 1
    bare = text[place:end]
    if not bare:
        raise RefusedTextError("empty element")
    if bare == "NULL":
        return None, end
    if bare.lower() == "null":
        raise RefusedTextError("unquoted null")
    return scalar_value(element_oid, bare), end


def shape(value: Any) -> tuple[int, ...]:
    """Lengths of the dimensions; refuses arrays that are not rectangular."""
    if not isinstance(value, list):
        return ()
    shapes = {shape(item) for item in value}
    if len(shapes) != 1:
        raise RefusedTextError("ragged")
    return (len(value), *shapes.pop())


def dumps(value: Any) -> str:
    """json.dumps(ensure_ascii=False, separators=(",", ":")), except that Numbers keep their spelling."""
    match value:
        case Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dumps(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(dumps, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- rows and records


class Oracle:
    """The plain twin of TableEncoder."""

    def __init__(self, schema: TableSchema, relation: Relation, context: EnvelopeContext) -> None:
        self.schema = schema
        self.relation = relation
        self.context = context

    def start_transaction(self, commit_lsn: int, commit_ts_us: int, xid: int, last_commit_lsn: int | None) -> None:
        self.shared: tuple[str, int, int, int | None, int | None] = (
            "false",
            commit_lsn,
            commit_ts_us,
            xid,
            last_commit_lsn,
        )

    def start_snapshot(self, consistent_lsn: int, began_ts_us: int) -> None:
        self.shared = ("true", consistent_lsn, began_ts_us, None, None)

    def encode(self, message: bytes, offset: int, lsn: int, tx_index: int, seq: int, now_us: int) -> list[OutRecord]:
        decoded = decode(message[offset:], "oracle")
        if not isinstance(decoded, Insert | Update | Delete) or decoded.relation_oid != self.relation.oid:
            raise ProtocolError("not a row of this relation")
        at = (lsn, tx_index, now_us)
        if isinstance(decoded, Insert):
            after = self.row(decoded.new)
            return [(self.key(after), self.value("c", None, after, seq, *at), None)]
        before = None
        if decoded.old is not None:
            if (decoded.old_kind == "O") != (self.relation.replica_identity == "f"):
                raise ProtocolError("old tuple does not fit the identity")
            before = self.row(decoded.old) if decoded.old_kind == "O" else self.identity_row(decoded.old)
        if isinstance(decoded, Delete):
            assert before is not None
            version = [("watershed.version", str(self.context.epoch * 2**48 + seq).encode())]
            return [
                (self.key(before), self.value("d", before, None, seq, *at), None),
                (self.key(before), None, version),
            ]
        new = decoded.new
        if decoded.old is not None:
            if len(decoded.old) != len(new):
                raise ProtocolError("width")
            new = tuple(
                there if here is UNCHANGED and there is not NULL else here
                for here, there in zip(decoded.new, decoded.old, strict=True)
            )
        after = self.row(new, may_have_holes=True)
        if before is None or self.key(before) == self.key(after):
            return [(self.key(after), self.value("u", before, after, seq, *at), None)]
        version = [("watershed.version", str(self.context.epoch * 2**48 + seq).encode())]
        moved_to = [("__debezium.newkey", self.key(after))]
        return [
            (self.key(before), self.value("d", before, None, seq, *at), moved_to),
            (self.key(before), None, moved_to + version),
            (self.key(after), self.value("c", None, after, seq + 1, *at), [("__debezium.oldkey", self.key(before))]),
        ]

    def copy_row(self, values: list[str | None], lsn: int, tx_index: int, seq: int, now_us: int) -> OutRecord:
        row = self.row(tuple(NULL if value is None else value.encode() for value in values))
        return self.key(row), self.value("r", None, row, seq, lsn, tx_index, now_us), None

    def row(self, values: tuple[TupleValue, ...], *, may_have_holes: bool = False) -> dict[str, Any]:
        """A hole is a column that is absent."""
        if len(values) != len(self.schema.columns):
            raise ProtocolError("width")
        return {
            c.name: self.column(c, value)
            for c, value in zip(self.schema.columns, values, strict=True)
            if not may_have_holes or value is not UNCHANGED or c.name in self.schema.key
        }

    def identity_row(self, values: tuple[TupleValue, ...]) -> dict[str, Any]:
        if len(values) != len(self.schema.columns):
            raise ProtocolError("width")
        return {
            c.name: self.column(c, value)
            for c, sent, value in zip(self.schema.columns, self.relation.columns, values, strict=True)
            if sent.is_key
        }

    def column(self, column: Column, value: TupleValue) -> Any:
        if value is NULL:
            if column.name in self.schema.key:
                raise UnsupportedChangeError("null key")
            return None
        if value is UNCHANGED:
            raise UnsupportedChangeError("unchanged")
        try:
            return json_value(column, str(value, "utf-8"))
        except UnicodeDecodeError:
            raise ProtocolError("UTF-8") from None

    def key(self, row: dict[str, Any]) -> bytes:
        return dumps({name: row[name] for name in self.schema.key}).encode()

    def value(
        self,
        op: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        seq: int,
        lsn: int,
        tx_index: int,
        now_us: int,
    ) -> bytes:
        snapshot, commit_lsn, ts_us, xid, last = self.shared
        sequence = json.dumps([None if last is None else str(last), str(lsn)], separators=(",", ":"))
        source: dict[str, Any] = {
            "version": self.context.connector_version,
            "connector": "postgresql",
            "name": self.context.prefix,
            "ts_ms": ts_us // 1000,
            "snapshot": snapshot,
            "db": self.context.database,
            "sequence": sequence,
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "schema": self.schema.table.schema,
            "table": self.schema.table.name,
            "txId": xid,
            "lsn": lsn,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
            "epoch": self.context.epoch,
            "seq": seq,
            "commit_lsn": commit_lsn,
            "tx_index": tx_index,
            "schema_version": self.schema.version,
        }
        if after is not None and len(after) < len(self.schema.columns):
            source["unchanged"] = [column.name for column in self.schema.columns if column.name not in after]
        return dumps(
            {
                "before": before,
                "after": after,
                "source": source,
                "transaction": None,
                "op": op,
                "ts_ms": now_us // 1000,
                "ts_us": now_us,
                "ts_ns": now_us * 1000,
            }
        ).encode()

"""Records of a table's topic as operators read them, whatever wrote them and in whatever profile. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from cdc.formats.cloud_events import OPERATIONS
from cdc.model.errors import WatershedError
from cdc.model.events import VERSION_HEADER, TableSchema, pack_version, unpack_version
from cdc.model.lsn import Lsn, format_lsn
from cdc.pgoutput.record_keys import RecordKeys

WORDS: Final[Mapping[str, str]] = {**OPERATIONS, "tombstone": "tombstone", "sweep": "sweep"}
VALUE_CHARS: Final = 40  # of a value in a line


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """One record. What it does not have, or has in a form that is not ours, is None."""

    partition: int
    offset: int
    key: Any  # its JSON; text that is no JSON
    op: str  # Debezium's letter; tombstone; sweep; "" for a record of another program
    version: int | None = None
    commit_lsn: int | None = None
    commit_us: int | None = None  # of the transaction; of an existing row, when it was read
    row: Mapping[str, Any] | None = None  # after the change, masked as in the topic
    before: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        epoch, seq = (None, None) if self.version is None else unpack_version(self.version)
        return {
            "partition": self.partition,
            "offset": self.offset,
            "key": self.key,
            "op": WORDS.get(self.op, self.op),
            "version": self.version,
            "epoch": epoch,
            "seq": seq,
            "commit_lsn": None if self.commit_lsn is None else format_lsn(Lsn(self.commit_lsn)),
            "commit_us": self.commit_us,
            "row": self.row,
            "before": self.before,
        }

    def line(self) -> str:
        """Returns one line: time (UTC), what happened, key, LSN and the columns: those that changed, if `before` says
        which."""
        at = "" if self.commit_us is None else datetime.fromtimestamp(self.commit_us / 1e6, UTC).strftime("%H:%M:%S.%f")
        lsn = "" if self.commit_lsn is None else format_lsn(Lsn(self.commit_lsn))
        parts = (at[:12], f"{WORDS.get(self.op, '?'):6}", key_text(self.key), lsn, self._columns())
        return "  ".join(part for part in parts if part)

    def _columns(self) -> str:
        row, before = self.row or {}, self.before or {}
        beside = [name for name in row if name in before]
        if beside and self.op == "u":
            changed = [name for name in beside if row[name] != before[name]]
            return ", ".join(f"{name}: {_short(before[name])} → {_short(row[name])}" for name in changed) or "no change"
        known = self.key if isinstance(self.key, dict) else {}
        return ", ".join(f"{name}={_short(value)}" for name, value in row.items() if name not in known)


def read_table_record(
    partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Any
) -> PublishedRecord:
    """Returns the record in this message. `headers`: as confluent_kafka has them, pairs of name and bytes."""
    named = payload(_json(key))
    if value is None:
        return PublishedRecord(partition, offset, named, "tombstone", _header_version(headers))
    envelope = _data(payload(_json(value)))
    source = envelope.get("source") if isinstance(envelope, dict) else None
    if not isinstance(source, dict):
        return PublishedRecord(partition, offset, named, "")
    epoch, seq = _integer(source.get("epoch")), _integer(source.get("seq"))
    op, row, before = envelope.get("op"), envelope.get("after"), envelope.get("before")
    return PublishedRecord(
        partition,
        offset,
        named,
        op if isinstance(op, str) else "",
        None if epoch is None or seq is None else pack_version(epoch, seq),
        _integer(source.get("commit_lsn")),
        _integer(source.get("ts_us")),
        row if isinstance(row, dict) else None,
        before if isinstance(before, dict) else None,
    )


def payload(found: Any) -> Any:
    """Returns what Kafka Connect's JsonConverter wraps with its schema; anything else as it is."""
    return found["payload"] if isinstance(found, dict) and found.keys() == {"schema", "payload"} else found


def _data(found: Any) -> Any:
    """Returns the data of a CloudEvent in structured mode; anything else as it is."""
    return found["data"] if isinstance(found, dict) and {"specversion", "data"} <= found.keys() else found


def record_key(schema: TableSchema, text: str) -> bytes:
    """Returns the record key for a key as operators type it: the text of one column, or a JSON list or object of
    several. Raises WatershedError if it is no key of the table."""
    if not schema.key:
        raise WatershedError(f"table {schema.table} has no key, so its rows can't be asked for by one", "leave it out")
    names = ", ".join(schema.key)
    hint = f"the key is {names}: " + (
        "write its value" if len(schema.key) == 1 else "write a JSON list of its values, such as '[\"eu\", 17]'"
    )
    values: Any = _parsed(text)
    if isinstance(values, dict):
        if values.keys() != set(schema.key):
            raise WatershedError(f"{text!r} is no key of {schema.table}: it has other columns", hint)
        values = [values[name] for name in schema.key]
    elif not isinstance(values, list) or len(schema.key) == 1:
        values = [text]
    if len(values) != len(schema.key):
        given, wanted = len(values), len(schema.key)
        raise WatershedError(f"{text!r} is no key of {schema.table}: {given} values for {wanted} columns", hint)
    try:
        key = RecordKeys(schema).encode([_text(value) for value in values])
        orjson.loads(key)  # a number's text is taken as it is
    except (WatershedError, ValueError) as error:
        raise WatershedError(
            f"{text!r} is no key of {schema.table}: a value is none of its column's type", hint
        ) from error
    return key


def key_text(key: Any) -> str:
    """Returns a key in the form that `record_key` reads."""
    values = list(key.values()) if isinstance(key, dict) else [key]
    if len(values) == 1:
        return values[0] if isinstance(values[0], str) else orjson.dumps(values[0]).decode()
    return orjson.dumps(values).decode()


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _text(value: Any) -> str:
    """Returns a value of a typed key as PostgreSQL prints it."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _json(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode("utf-8", "replace")


def _header_version(headers: Any) -> int | None:
    found = dict(headers or ()).get(VERSION_HEADER)
    return int(found) if isinstance(found, bytes) and found.isdigit() else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode() if not isinstance(value, str) else value
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"

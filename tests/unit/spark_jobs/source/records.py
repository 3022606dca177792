"""Records of a table's topic, as the Kafka client hands them over."""

import json
from typing import Any

from cdc.config.settings import KafkaConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.schema_history import SchemaHistory
from spark_jobs.source.records import TopicRange

TOPIC = "shop.public.things"


def column(name: str, oid: int, kind: str, modifier: int = -1, *, nullable: bool = True) -> Column:
    return Column(name, oid, modifier, kind, nullable, "b", oid)


def schema(*more: Column, version: int = 1) -> TableSchema:
    columns = (column("id", 23, "integer", nullable=False), column("name", 25, "text"), *more)
    return TableSchema(TableId("public", "things"), version, 16385, columns, ("id",), TOPIC)


class Record:
    """What is used of confluent_kafka.Message."""

    def __init__(self, offset: int, key: int, seq: int, value: dict[str, Any] | None, at_ms: int) -> None:
        self._offset, self._key, self._seq, self._at_ms = offset, key, seq, at_ms
        self._value = None if value is None else json.dumps(value).encode()

    def key(self) -> bytes:
        return json.dumps({"id": self._key}, separators=(",", ":")).encode()

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return [("watershed.version", str(pack_version(1, self._seq)).encode())]

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at_ms


def record(
    offset: int,
    op: str,
    key: int,
    seq: int,
    *,
    lsn: int = 0,
    at_ms: int = 5_000,
    unchanged: tuple[str, ...] = (),
    version: int = 1,
    **values: Any,
) -> Any:
    """A record; op `t` makes a tombstone. Its LSN is a hundred times `seq` where none is given."""
    source: dict[str, Any] = {"schema": "public", "table": "things", "epoch": 1, "seq": seq, "ts_us": seq}
    source |= {"schema_version": version, "commit_lsn": lsn or seq * 100}
    if unchanged:
        source["unchanged"] = list(unchanged)
    after = None if op == "d" else {"id": key, **values}
    value = None if op == "t" else {"op": op, "after": after, "source": source}
    return Record(offset, key, seq, value, at_ms)


def part(**fields: Any) -> TopicRange:
    given: dict[str, Any] = {
        "kafka": KafkaConfig(bootstrap_servers="127.0.0.1:1"),
        "schema_history": SchemaHistory((schema(),)),
        "topic_id": "id",
        "number": 0,
        "begin": 0,
        "start": 0,
        "end": 1_000,
    }
    return TopicRange(**given | fields)

"""Records of a table with one column, as the Kafka client hands them over, and a reader and a store for them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_jobs.reading import Partition, Piece
from spark_jobs.tasks import SinkTaskConfig

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change, Outcome, Result
from sinks.reduction import reduce_changes
from sinks.schema_history import SchemaHistory
from spark_jobs.task_report import SchemaCatalog

TOPIC = "shop.public.a"
PARTITION = Partition(TOPIC, 0)


def schema(name: str = "a", version: int = 1) -> TableSchema:
    columns = (Column("id", 20, -1, "bigint", False, "b", 20),)
    return TableSchema(TableId("public", name), version, 16385, columns, ("id",), f"shop.public.{name}")


def catalog(*schema_histories: SchemaHistory, name: str = "first") -> SchemaCatalog:
    return SchemaCatalog(
        name,
        {
            schema_history.newest.topic: schema_history
            for schema_history in schema_histories or (SchemaHistory((schema(),)),)
        },
    )


class Record:
    """What is used of confluent_kafka.Message."""

    def __init__(self, offset: int, number: int, seq: int, value: bytes | None, partition: int = 0) -> None:
        self._offset = offset
        self._partition = partition
        self._key = json.dumps({"id": number}).encode()
        self._value = value
        self._headers = None if value else [("watershed.version", str(pack_version(1, seq)).encode())]

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_326_400_000


def upsert(offset: int, number: int, seq: int, schema_version: int = 1, partition: int = 0) -> Record:
    source = {"schema": "public", "table": "a", "epoch": 1, "seq": seq, "schema_version": schema_version}
    value = json.dumps({"op": "c", "after": {"id": number}, "source": source}).encode()
    return Record(offset, number, seq, value, partition)


def tombstone(offset: int, number: int, seq: int) -> Record:
    return Record(offset, number, seq, None)


class FakeReader:
    """Hands over these pieces, one at each read; nothing once they are used up."""

    def __init__(self, *pieces: Piece) -> None:
        self.pieces = list(pieces)
        self.sought: list[Mapping[Partition, int]] = []
        self.is_closed = False
        self.is_resting = False

    def seek(self, starts: Mapping[Partition, int]) -> None:
        self.sought.append(starts)

    def read(self, timeout_s: float, bytes_max: int) -> Piece:
        del timeout_s, bytes_max
        return self.pieces.pop(0) if self.pieces else Piece([], {}, False)

    def rest(self) -> None:
        self.is_resting = True

    def close(self) -> None:
        self.is_closed = True


def piece(*records: Record, end: int | None = None, is_full: bool = False) -> Piece:
    messages: list[Any] = list(records)
    positions = {Partition(TOPIC, record.partition()): record.offset() + 1 for record in records}
    return Piece(messages, positions | ({} if end is None else {PARTITION: end}), is_full)


class FakeTarget:
    """Keeps versions by key, and writes what is newer."""

    def __init__(self, refused: int | None = None) -> None:
        self.held: dict[int, int] = {}
        self.refused = refused
        self.error: Exception | None = None
        self.is_closed = False
        self.finished = 0

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        return reduce_changes(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        if self.error is not None:
            raise self.error
        return [self._apply(change) for change in changes]

    def _apply(self, change: Change) -> Result:
        number = change.key["id"]
        if number == self.refused:
            return Result(Outcome.REJECTED, "column id: too odd")
        if self.held.get(number, -1) >= change.version:
            return Result(Outcome.STALE)
        self.held[number] = change.version
        return Result(Outcome.WRITTEN)

    def finish(self) -> tuple[Any, ...]:
        self.finished += 1
        return ()

    def close(self) -> None:
        self.is_closed = True


def job(generation: int = 1, on_rejected: str = "dead_letter") -> SinkTaskConfig:
    from cdc.config.settings import KafkaConfig

    return SinkTaskConfig(
        "search",
        KafkaConfig(bootstrap_servers="127.0.0.1:1"),
        SearchConfig.model_validate({"url": "http://127.0.0.1:1", "on_rejected": on_rejected}),
        "shop",
        generation,
    )

"""Records of a table with one column, as the Kafka client hands them over, the pieces that tasks get of them, and a
reader and a store for them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cdc.config.settings import KafkaConfig
from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change, Outcome, Result
from sinks.reduction import reduce_changes
from sinks.schema_history import SchemaHistory
from spark_jobs.source.piece import Piece, piece_of
from spark_jobs.source.reading import Fetched, Partition
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig

TOPIC = "shop.public.a"
PARTITION = Partition(TOPIC, 0)
OTHER = Partition(TOPIC, 1)
AT_MS = 1_767_326_400_000  # the time of every record


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

    def __init__(
        self, offset: int, number: int, seq: int, value: bytes | None, partition: int = 0, topic: str = TOPIC
    ) -> None:
        self._offset = offset
        self._partition = partition
        self._topic = topic
        self._key = json.dumps({"id": number}).encode()
        self._value = value
        self._headers = None if value else [("watershed.version", str(pack_version(1, seq)).encode())]

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return self._topic

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
        return 1, AT_MS


def upsert(offset: int, number: int, seq: int, schema_version: int = 1, partition: int = 0) -> Record:
    source = {"schema": "public", "table": "a", "epoch": 1, "seq": seq, "schema_version": schema_version}
    value = json.dumps({"op": "c", "after": {"id": number}, "source": source}).encode()
    return Record(offset, number, seq, value, partition)


def tombstone(offset: int, number: int, seq: int) -> Record:
    return Record(offset, number, seq, None)


class Signal(Record):
    """A record of one of our own topics."""

    def __init__(self, topic: str, key: str, offset: int = 0) -> None:
        super().__init__(offset, 0, 0, b"{}", topic=topic)
        self._key = key.encode()


def fetched(
    *records: Record,
    end: int | None = None,
    is_full: bool = False,
    lost: Mapping[Partition, str] | None = None,
) -> Fetched:
    """What the reader returns. `end`: of PARTITION, where it lies behind the last record."""
    messages: list[Any] = list(records)
    positions = {Partition(record.topic(), record.partition()): record.offset() + 1 for record in records}
    return Fetched(messages, positions | ({} if end is None else {PARTITION: end}), is_full, lost or {})


def piece(*records: Record, end: int | None = None, is_full: bool = False, begin: int = 0) -> Piece:
    """A piece of a task that reads both partitions from `begin` on."""
    return piece_of(fetched(*records, end=end, is_full=is_full), {PARTITION: begin, OTHER: begin})


class FakeReader:
    """Returns these, one at each read; nothing once they are used up."""

    def __init__(self, *script: Fetched) -> None:
        self.script = list(script)
        self.sought: list[Mapping[Partition, int]] = []
        self.waits: list[float] = []
        self.is_resting = False

    def seek(self, starts: Mapping[Partition, int]) -> None:
        self.sought.append(dict(starts))

    def read(self, timeout_s: float, bytes_max: int) -> Fetched:
        del bytes_max
        self.waits.append(timeout_s)
        return self.script.pop(0) if self.script else Fetched([], {}, False)

    def unassign(self) -> None:
        self.is_resting = True


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
    return SinkTaskConfig(
        "search",
        KafkaConfig(bootstrap_servers="127.0.0.1:1"),
        SearchConfig.model_validate({"url": "http://127.0.0.1:1", "on_rejected": on_rejected}),
        "shop",
        generation,
    )

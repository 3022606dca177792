"""Publishes to a prefix's topics what capture would, written from the format's description, without capture's code."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from cdc.model.events import Column, TableId, TableSchema
from tests.support.waiting import eventually

Row = Mapping[str, Any]
COMPACTED = {"cleanup.policy": "compact"}
BATCH_BYTES = 48_576  # of a batch, beside its record
ANSWER_S_MAX = 30.0
QUEUE_MAX = 50_000  # records on their way


class Feed:
    """One prefix on a broker, one transactional producer. Versions and LSNs rise by themselves."""

    def __init__(self, bootstrap_servers: str, prefix: str, epoch: int = 1, record_bytes_max: int = 1_000_000) -> None:
        self.prefix = prefix
        self.epoch = epoch
        self.seq = 0
        self._committed_seq = 0
        self.lsn = 1000
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._topic_config = COMPACTED | {"max.message.bytes": str(record_bytes_max + BATCH_BYTES)}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": prefix,
                "message.max.bytes": record_bytes_max,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(ANSWER_S_MAX)
        self.schemas: dict[str, TableSchema] = {}
        self._partitions: dict[str, int] = {}
        self._written: set[str] = set()  # topics, in the open transaction
        self._create(f"{prefix}.control", 1)
        self._create(f"{prefix}.progress", 1)

    @property
    def version(self) -> int:
        """Of the last change."""
        return self.epoch << 48 | self.seq

    def next_version(self) -> int:
        """For a change that is written in another way."""
        self.seq += 1
        return self.version

    def topic(self, table: str) -> str:
        return f"{self.prefix}.public.{table}"

    def add_table(
        self, table: str, columns: Mapping[str, tuple[int, str]], key: Sequence[str], partitions: int = 2
    ) -> None:
        """`columns`: name → (type oid, type name)."""
        self._create(self.topic(table), partitions)
        self._partitions[self.topic(table)] = partitions
        self._send(f"{self.prefix}.control", f"schema/public.{table}/1", self._described(table, 1, columns, key))

    def alter_table(self, table: str, columns: Mapping[str, tuple[int, str]]) -> None:
        """The next version of its schema, in the transaction that is open; rows that follow are of it."""
        known = self.schemas[table]
        record = self._described(table, known.version + 1, columns, known.key)
        self.send_in_transaction(f"{self.prefix}.control", f"schema/public.{table}/{known.version + 1}", record)

    def _described(
        self, table: str, version: int, columns: Mapping[str, tuple[int, str]], key: Sequence[str]
    ) -> dict[str, Any]:
        known = self.schemas.get(table)
        schema = TableSchema(
            table=TableId("public", table),
            version=version,
            oid=known.oid if known else 16384 + len(self.schemas),
            columns=tuple(
                Column(name, oid, _modifier(message), message, name not in key, "b", oid)
                for name, (oid, message) in columns.items()
            ),
            key=tuple(key),
            topic=self.topic(table),
        )
        self.schemas[table] = schema
        return {
            "table_schema": "public",
            "table_name": table,
            "oid": schema.oid,
            "version": version,
            "topic": self.topic(table),
            "key": list(key),
            "columns": [
                {
                    "name": name,
                    "type_oid": oid,
                    "type_modifier": _modifier(type_name),
                    "type": type_name,
                    "type_kind": "b",
                    "base_type_oid": oid,
                    "nullable": name not in key,
                }
                for name, (oid, type_name) in columns.items()
            ],
        }

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> int:
        """The LSN of what was committed."""
        self._commit()
        self._committed_seq = self.seq
        self.lsn += 100
        return self.lsn

    def abort(self) -> None:
        """The records reach the broker first; their sequence numbers are used again, as capture would."""
        self._producer.flush(ANSWER_S_MAX)
        self._producer.abort_transaction(ANSWER_S_MAX)
        self._written.clear()
        self.seq = self._committed_seq

    def upsert(self, table: str, op: str = "c", **row: Any) -> None:
        self._change(table, op, row, row)

    def update_without(self, table: str, unchanged: Sequence[str], **row: Any) -> None:
        """An update whose record lacks the values of these columns."""
        after = {name: value for name, value in row.items() if name not in unchanged}
        self._change(table, "u", row, after, unchanged=[*unchanged])

    def truncate(self, table: str) -> int:
        """In the transaction that is open; returns the version below which the rows of the table are gone."""
        floor = self.next_version()
        record = {
            "table_schema": "public",
            "table_name": table,
            "floor": floor,
            "as_of_lsn": self.lsn + 100,
            "epoch": self.epoch,
        }
        self.send_in_transaction(f"{self.prefix}.control", f"sweep/public.{table}", record)
        return floor

    def delete(self, table: str, **key: Any) -> None:
        """The delete and its tombstone."""
        self._change(table, "d", key, None)
        version = str(self.version).encode()
        self._produce(self.topic(table), key=_json(key), value=None, headers=[("watershed.version", version)])
        self._producer.poll(0)

    def tombstone(self, table: str, version: int, **key: Any) -> None:
        """Alone, as compaction may leave it."""
        headers = [("watershed.version", str(version).encode())]
        self._produce(self.topic(table), key=_json(key), value=None, headers=headers)

    def transaction(self, *upserts: tuple[str, Row]) -> int:
        """Commit some upserts; the LSN."""
        self.begin()
        for table, row in upserts:
            self.upsert(table, **row)
        return self.commit()

    def raw(self, table: str, key: bytes, value: bytes | None) -> None:
        self._produce(self.topic(table), key=key, value=value)

    def send_in_transaction(self, topic: str, key: str, value: Any) -> None:
        """Any record, in the transaction that is open."""
        self._produce(topic, key=key.encode(), value=_json(value))

    def progress(self, lsn: int | None = None, end_offsets: Mapping[str, Sequence[int]] | None = None) -> int:
        """Say that everything up to the LSN (the last commit's) lies below these offsets (the ends of now)."""
        lsn = self.lsn if lsn is None else lsn
        self._send(
            f"{self.prefix}.progress",
            "progress",
            {
                "epoch": self.epoch,
                "seq": self.seq,
                "lsn": lsn,
                "commit_ts_us": time.time_ns() // 1000,
                "published_ts_us": time.time_ns() // 1000,
                "end_offsets": end_offsets or self.end_offsets(),
            },
        )
        return lsn

    def sweep(self, table: str, floor: int, as_of_lsn: int) -> None:
        self._send(
            f"{self.prefix}.control",
            f"sweep/public.{table}",
            {
                "table_schema": "public",
                "table_name": table,
                "floor": floor,
                "as_of_lsn": as_of_lsn,
                "epoch": self.epoch,
            },
        )

    def end_offsets(self) -> dict[str, tuple[int, ...]]:
        """High watermarks of the tables' topics."""
        found = self._ends(self._partitions)
        return {topic: tuple(found[topic, n] for n in range(count)) for topic, count in self._partitions.items()}

    def is_answered(self) -> bool:
        """Whether the brokers answer about the tables' topics, perhaps after a restart."""
        try:
            self._admin.list_topics(timeout=ANSWER_S_MAX)  # or the client asks whom it asked before
            return bool(self.end_offsets())
        except KafkaException:
            return False

    def _ends(
        self, partitions: Mapping[str, int], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[tuple[str, int], int]:
        wanted = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(dict.fromkeys(wanted, latest), isolation_level=isolation)
        return {(at.topic, at.partition): future.result(ANSWER_S_MAX).offset for at, future in asked.items()}

    def _change(self, table: str, op: str, row: Row, after: Row | None, **source_fields: Any) -> None:
        self.seq += 1
        key = self.schemas[table].key
        source = {
            "connector": "postgresql",
            "name": self.prefix,
            "snapshot": "true" if op == "r" else "false",
            "db": "shop",
            "schema": "public",
            "table": table,
            "lsn": self.lsn,
            "epoch": self.epoch,
            "seq": self.seq,
            "commit_lsn": self.lsn + 100,
            "tx_index": 0,
            "schema_version": self.schemas[table].version,
            **source_fields,
        }
        value = {"before": None if after else row, "after": after, "source": source, "op": op, "ts_ms": 0}
        while len(self._producer) > QUEUE_MAX:
            self._producer.poll(0.1)
        self._produce(self.topic(table), key=_json({name: row[name] for name in key}), value=_json(value))

    def _send(self, topic: str, key: str, value: Any) -> None:
        self._producer.begin_transaction()
        self._produce(topic, key=key.encode(), value=_json(value))
        self._commit()

    def _produce(self, topic: str, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        self._producer.produce(topic, key=key, value=value, headers=[*headers])
        self._written.add(topic)

    def _commit(self) -> None:
        """Returns when every reader sees it: the coordinator answers before it has written the markers."""
        self._producer.commit_transaction(ANSWER_S_MAX)
        written = {topic: self._partitions.get(topic, 1) for topic in self._written}
        self._written.clear()

        def is_readable() -> bool:
            try:
                return self._ends(written, IsolationLevel.READ_COMMITTED) == self._ends(written)
            except KafkaException:
                return False  # asked of a broker that is just taking over

        if written:
            eventually(is_readable, ANSWER_S_MAX, f"what was committed to {', '.join(written)} can be read")

    def _create(self, topic: str, partitions: int) -> None:
        made = self._admin.create_topics([NewTopic(topic, partitions, 1, config=self._topic_config)])
        made[topic].result(ANSWER_S_MAX)

        def has_leaders() -> bool:
            try:
                self._admin.list_topics(timeout=ANSWER_S_MAX)  # or the client asks whom it asked before
                return bool(self._ends({topic: partitions}))
            except KafkaException:
                return False

        eventually(has_leaders, ANSWER_S_MAX, f"topic {topic} has leaders")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _modifier(type_name: str) -> int:
    """As pg_attribute.atttypmod has it."""
    digits = re.fullmatch(r"numeric\((\d+),(\d+)\)", type_name)
    return (int(digits[1]) << 16 | int(digits[2])) + 4 if digits else -1

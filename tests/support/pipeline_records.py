"""State and progress records as commands that watch a snapshot read them, without a broker."""

from collections.abc import Mapping
from typing import Any

from cdc.model.control import PositionRecord, ProgressRecord, Record, SnapshotProgress, SnapshotRecord, SourceIdentity
from cdc.model.sink_records import SinkRecord
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics

SOURCE = SourceIdentity(system_identifier="1", timeline=1, database="shop", slot="shop")


class FakeTail:
    """Takes the place of cdc.kafka.compacted.CompactedTail. What is told is seen at the next poll."""

    def __init__(self, topics: Topics) -> None:
        self.latest: dict[str, dict[str, bytes]] = {topics.state: {}, topics.progress: {}}
        self.polls: list[list[tuple[str, str, bytes]]] = []  # what each poll will bring; then nothing more
        self._topics = topics

    def publish(self, record: Record) -> None:
        """Has been there for ever."""
        self.latest[self._topic(record)][record.record_key] = record.encode()

    def publish_later(self, *records: Record) -> None:
        """All at one poll."""
        self.polls.append([(self._topic(record), record.record_key, record.encode()) for record in records])

    def read_to_end(self) -> set[tuple[str, str]]:
        return {changed for _ in self.polls[:] for changed in self.poll(0)}

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:  # noqa: ARG002
        came = self.polls.pop(0) if self.polls else []
        for topic, key, value in came:
            self.latest[topic][key] = value
        return {(topic, key) for topic, key, _ in came}

    def close(self) -> None:
        """Nothing is open."""

    def _topic(self, record: Record) -> str:
        match record:
            case SnapshotRecord() | PositionRecord() | TableRecord():
                return self._topics.state
            case SnapshotProgress() | ProgressRecord() | SinkRecord():
                return self._topics.progress
        raise AssertionError(f"{record} is of another topic")


def snapshot(table: str = "a", **fields: Any) -> SnapshotRecord:
    wanted = {
        "request": "r1",
        "table_schema": "public",
        "table_name": table,
        "status": "running",
        "sweeps": True,
        "rows": 300,
        "rows_estimated": 1000,
        "requested_us": 5,
    }
    return SnapshotRecord.model_validate(wanted | fields)


def progress(table: str = "a", **fields: Any) -> SnapshotProgress:
    wanted = {
        "request": "r1",
        "table": f"public.{table}",
        "status": "running",
        "rows": 250,
        "rows_estimated": 1000,
        "rows_per_s": 50.0,
        "updated_us": 6,
    }
    return SnapshotProgress.model_validate(wanted | fields)


def sink(
    generation: int, lsn: int, ends: Mapping[str, tuple[int, ...]] | None = None, name: str = "search", epoch: int = 1
) -> SinkRecord:
    return SinkRecord(
        sink=name,
        generation=generation,
        end_offsets=dict(ends or {}),
        applied_lsn=lsn,
        epoch=epoch,
        commit_ts_us=0,
        applied_ts_us=0,
        sweeps={},
        written=0,
        stale=0,
    )


def published(lsn: int, ends: Mapping[str, tuple[int, ...]] | None = None, epoch: int = 1) -> ProgressRecord:
    return ProgressRecord(
        epoch=epoch, seq=1, lsn=lsn, commit_ts_us=0, published_ts_us=0, end_offsets=dict(ends or {"t": (100,)})
    )


def position(lsn: int, epoch: int = 1, phase: str = "streaming") -> PositionRecord:
    return PositionRecord.model_validate(
        {
            "phase": phase,
            "epoch": epoch,
            "seq": 0,
            "resume_lsn": lsn,
            "source": SOURCE,
            "publication": "p",
            "protocol": "proto_version=1",
        }
    ).sealed()

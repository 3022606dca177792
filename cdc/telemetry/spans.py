"""Spans of batches, without the SDK: what capture has published, and what sinks have applied."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cdc.model.lsn import Lsn, format_lsn
from cdc.ports.published_batch import PublishedBatch

TABLES_MAX: Final = 20  # names in one span

Value = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Span:
    """Work that is over. Times in µs since 1970."""

    name: str
    kind: Literal["producer", "consumer"]
    begun_us: int
    ended_us: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""


def table_attributes(tables: Iterable[str]) -> dict[str, Value]:
    """Returns the number of tables, and the names of the first ones."""
    names = sorted(tables)
    return {"watershed.tables": names[:TABLES_MAX], "watershed.table_count": len(names)}


def published_span(prefix: str, tables: Mapping[str, str], batch: PublishedBatch) -> Span:
    """Returns the span of a Kafka transaction. `tables`: topic → schema.table of the captured tables."""
    attributes: dict[str, Value] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": batch.records,
        "watershed.prefix": prefix,
        "watershed.epoch": batch.epoch,
        "watershed.position_lsn": format_lsn(batch.position_lsn),
        "watershed.rows": batch.rows,
        "watershed.bytes": batch.bytes,
        "watershed.commit_ms": round(batch.commit_s * 1_000, 1),
        "watershed.is_partial": batch.is_partial,
        **table_attributes(tables[topic] for topic in batch.topics if topic in tables),
    }
    if batch.commits is not None:
        first, last = batch.commits
        attributes |= {
            "watershed.commit_lsn.first": format_lsn(Lsn(first)),
            "watershed.commit_lsn.last": format_lsn(Lsn(last)),
            "watershed.delay_ms": round((batch.ended_us - batch.commit_ts_us) / 1_000, 1),
        }
    return Span(f"publish {prefix}", "producer", batch.begun_us, batch.ended_us, attributes)

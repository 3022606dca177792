"""Is history continuous between the position record and what the servers hold now? (P4: fail closed.)

Looked at with the slot held and earlier producers fenced, so that nothing moves meanwhile. A mismatch that could hide a
change is a GapError: nothing is published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.capture.kafka_transaction import PROTOCOL
from cdc.model.errors import NEXT_AFTER_GAP, GapError
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topics import Topics
from cdc.records.control import PositionRecord


@dataclass(frozen=True, slots=True)
class SourceNow:
    """The source as it is."""

    system_identifier: str
    timeline: int
    database: str
    flush_lsn: Lsn
    slot_wal_status: str | None
    slot_confirmed_lsn: Lsn | None
    publication: str | None  # fingerprint


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A table's topic as it is."""

    topic_id: str
    end_offsets: Sequence[int]


def require_same_database(position: PositionRecord, system_identifier: str, database: str) -> None:
    """Raises GapError when the position was written for another database. The one check that comes before the slot is
    taken: a slot of that name elsewhere is not ours, and who streams to these topics must not be fenced for it."""
    then = position.source
    if (then.system_identifier, then.database) != (system_identifier, database):
        raise GapError(
            f"the source is another database (system identifier {system_identifier}, {database}) than the one "
            f"that was captured ({then.system_identifier}, {then.database})",
            "correct source.dsn, or choose another topics.prefix",
        )


def require_same_source(position: PositionRecord, now: SourceNow) -> None:
    """Raises GapError when the position's LSNs do not belong to this source, slot and publication."""
    then = position.source
    require_same_database(position, now.system_identifier, now.database)
    if then.timeline != now.timeline:
        raise GapError(
            f"the source is on timeline {now.timeline}, the position on {then.timeline}: a failover or a restore",
            NEXT_AFTER_GAP,
        )
    if now.slot_wal_status in (None, "lost"):
        raise GapError(
            f"slot {then.slot} {'is gone' if now.slot_wal_status is None else 'lost its WAL'}", NEXT_AFTER_GAP
        )
    if now.slot_confirmed_lsn is not None and now.slot_confirmed_lsn > position.resume_lsn:
        raise GapError(
            f"slot {then.slot} was moved to {format_lsn(now.slot_confirmed_lsn)}, past our position "
            f"{format_lsn(position.resume_lsn)}",
            NEXT_AFTER_GAP,
        )
    if position.resume_lsn > now.flush_lsn:
        raise GapError(
            f"the source's log ends at {format_lsn(now.flush_lsn)}, before our position "
            f"{format_lsn(position.resume_lsn)}: it was restored",
            NEXT_AFTER_GAP,
        )
    if position.publication != now.publication:
        raise GapError("the publication was altered, dropped or recreated since it was last read", NEXT_AFTER_GAP)
    if position.partial is not None and position.protocol != PROTOCOL:
        raise GapError(
            f"a transaction was half published with {position.protocol}, this version reads with {PROTOCOL}",
            "let the version that began it finish it",
        )


def require_same_topics(position: PositionRecord, now: Mapping[str, TopicNow]) -> None:
    """Raises GapError when a topic was deleted, recreated, repartitioned or lost its newest records. `now`: those
    that exist."""
    for name, then in position.topics.items():
        topic = now.get(name)
        if topic is None:
            raise GapError(f"topic {name} is gone", NEXT_AFTER_GAP)
        if topic.topic_id != then.topic_id:
            raise GapError(f"topic {name} was deleted and recreated", NEXT_AFTER_GAP)
        if then.end_offsets and len(topic.end_offsets) != len(then.end_offsets):
            raise GapError(
                f"topic {name} has {len(topic.end_offsets)} partitions, it had {len(then.end_offsets)}: "
                "a key's records would no longer be in one order",
                NEXT_AFTER_GAP,
            )
        for partition, (end, least) in enumerate(zip(topic.end_offsets, then.end_offsets, strict=False)):
            if end < least:
                raise GapError(
                    f"topic {name}, partition {partition} ends at {end}, it had reached {least}", NEXT_AFTER_GAP
                )


@dataclass(frozen=True, slots=True)
class Tables:
    """The configured tables, held against those that the position covers."""

    kept: tuple[TableSchema, ...]  # captured already
    joining: tuple[TableId, ...]  # not captured so far
    left: tuple[str, ...]  # topics of those that are not configured any more


def compare_tables(
    configured: Sequence[TableId], captured: Mapping[TableId, TableSchema], position: PositionRecord, topics: Topics
) -> Tables:
    """`captured`: every table that ever was, as control says. Raises GapError where control says too little."""
    kept, joining = [], []
    for table in configured:
        schema = captured.get(table)
        if schema is not None and schema.topic in position.topics:
            kept.append(schema)
        elif topics.table(table) in position.topics:
            raise GapError(f"topic {topics.control} does not say what table {table} is", NEXT_AFTER_GAP)
        else:
            joining.append(table)
    left = position.topics.keys() - {schema.topic for schema in kept}
    return Tables(tuple(kept), tuple(joining), tuple(sorted(left)))

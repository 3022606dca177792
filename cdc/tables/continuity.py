"""Checks that history is continuous between the position record and what the servers hold now (P4: fail closed).

The checks run while the slot is held and earlier producers are fenced, so that nothing changes meanwhile. A mismatch
that could hide a change is a GapError: nothing is published.
"""

from collections.abc import Collection, Mapping
from typing import Final

from cdc.model.control import PROTOCOL, PositionRecord, ProgressRecord, TopicState
from cdc.model.errors import NEXT_AFTER_GAP, NEXT_AFTER_OTHER_SERVER, GapError, OtherDatabaseError
from cdc.model.lsn import Lsn, format_lsn
from cdc.ports.source_now import SourceNow
from cdc.tables.timelines import Branch, follow

NEXT_STANDBY: Final = (
    "a standby that is made again has no slots, and without hot_standby_feedback and a primary_slot_name it loses "
    "them: cdc check names what is missing"
)
NEXT_PROMOTION: Final = "cdc check says what the next promotion needs so that the slot is there"


def require_same_database(position: PositionRecord, system_identifier: str, database: str) -> None:
    """Raises OtherDatabaseError if the position was written for another database. This is the one check before the slot
    is taken: in another database, a slot of that name is not ours, and the process that streams to these topics must
    not be fenced."""
    then, server = position.source, (system_identifier, database)
    if then.server != server:
        raise OtherDatabaseError(
            f"the source is a different database (system identifier {system_identifier}, {database}) than the one "
            f"that was captured ({then.system_identifier}, {then.database})",
            NEXT_AFTER_OTHER_SERVER,
            server,
        )


def require_same_source(position: PositionRecord, now: SourceNow) -> PositionRecord:
    """Returns the position on the source's timeline: after a promotion it is one of the next epoch. Raises GapError if
    the LSNs of the position do not belong to this source, slot and publication."""
    require_same_database(position, now.system_identifier, now.database)
    before, position = position, follow(position, Branch(now.timeline, now.ended))
    then = position.source
    promoted = "" if position.epoch == before.epoch else f" on the promoted server (timeline {then.timeline})"
    if now.slot_wal_status is None:
        what = "is gone" if not promoted else f"does not exist{promoted}"
        raise slot_missing(before, position, what, is_standby=now.is_standby)
    if now.slot_wal_status == "lost":
        why = f"was invalidated ({now.slot_invalidation})" if now.slot_invalidation else "lost its WAL"
        raise slot_missing(before, position, f"{why}{promoted}", is_standby=now.is_standby)
    if now.slot_confirmed_lsn is not None and now.slot_confirmed_lsn > position.resume_lsn:
        raise GapError(
            f"slot {then.slot} was moved to {format_lsn(now.slot_confirmed_lsn)}, past the position of capture, "
            f"{format_lsn(position.resume_lsn)}",
            NEXT_AFTER_GAP,
        )
    if position.resume_lsn > now.flush_lsn:
        raise GapError(
            f"the source's log ends at {format_lsn(now.flush_lsn)}, before the position of capture, "
            f"{format_lsn(position.resume_lsn)}: it was restored",
            NEXT_AFTER_GAP,
        )
    if now.publication is None or publication_of(position.publication) != publication_of(now.publication):
        raise GapError("the publication was dropped or recreated since it was last read", NEXT_AFTER_GAP)
    if position.partial is not None and position.protocol != PROTOCOL:
        raise GapError(
            f"a transaction was partly published with {position.protocol}, this version reads with {PROTOCOL}",
            "start the former version until it is finished",
        )
    return position


def slot_missing(before: PositionRecord, position: PositionRecord, what: str, *, is_standby: bool = False) -> GapError:
    """Returns the error of a slot from which nothing can be streamed. `before`: the position before it was moved to the
    source's timeline. `is_standby`: the server that should have the slot."""
    missing = f"changes that committed from {format_lsn(Lsn(position.resume_lsn))} on can't be read"
    hint = NEXT_AFTER_GAP
    if is_standby:
        hint = f"{NEXT_AFTER_GAP}; {NEXT_STANDBY}"
    elif before.epoch != position.epoch:
        hint = f"{NEXT_AFTER_GAP}; {NEXT_PROMOTION}"
    return GapError(f"slot {position.source.slot} {what}: {missing}", hint)


def publication_of(fingerprint: str) -> str:
    """Returns the part of the fingerprint that stays when the publication is altered: its name and oid."""
    return fingerprint.rpartition(":")[0]


def incarnation_of(now: TopicState, known: Collection[TopicState], mark: str, *, is_unsure: bool = False) -> str:
    """Returns the incarnation of a topic from which reading may begin again (see ProgressRecord.incarnations). `known`:
    what the records of capture say about it; they may be of different times. `mark`: distinguishes the topic from what
    it was, if it has the same id and may have lost records since, or has other partitions. `is_unsure`: the records may
    be older than the offsets that readers have noted."""
    same = [then for then in known if then.topic_id == now.topic_id]
    # Where nothing is known of it, a topic that does not begin at 0 may have been read by somebody before.
    is_unsure = is_unsure or (not same and any(now.start_offsets))
    if is_unsure or len({then.identity for then in same}) > 1 or any(topic_trouble(then, now) for then in same):
        return f"{now.topic_id}#{mark}"
    return same[0].incarnation if same else ""


def topic_id_of(incarnation: str) -> str:
    """Returns Kafka's id of the topic; `incarnation_of` appends `#` and a mark when the same topic may have lost
    records."""
    return incarnation.partition("#")[0]


def published_states(progress: ProgressRecord | None) -> dict[str, TopicState]:
    """Returns the topics as the last progress record knows them."""
    if progress is None:
        return {}
    return {
        name: TopicState(
            topic_id=topic_id_of(identity),
            incarnation=identity if "#" in identity else "",
            end_offsets=progress.end_offsets.get(name, ()),
        )
        for name, identity in progress.incarnations.items()
    }


def history_of(previous: PositionRecord | None, published: ProgressRecord | None) -> str:
    """Returns the history that continues (see ProgressRecord.history). Empty if none does: nothing is known of an
    earlier one, or one of the records is an older copy."""
    known = {record.history for record in (previous, published) if record is not None}
    return known.pop() if len(known) == 1 else ""


def intact_topics(states: Mapping[str, TopicState], history: str, published: ProgressRecord | None) -> frozenset[str]:
    """Returns the topics that hold the last record of each row that any store has. Where a topic was created again or
    may have lost records, a store may have a row of which the topic has none. `states`, `history`: those that begin
    now. `published`: what readers know."""
    if published is None or published.history != history:
        return frozenset()
    return frozenset(name for name, now in states.items() if now.identity == published.incarnations.get(name))


def loss_of(now: TopicState, then: TopicState) -> str:
    """Returns which records a topic of the same id has lost; "" if none. The beginning of a compacted topic stays when
    it is compacted: it moves only if records are deleted."""
    for partition, (end, least) in enumerate(zip(now.end_offsets, then.end_offsets, strict=False)):
        if end < least:
            return f"has lost records: partition {partition} ends at {end}, it had reached {least}"
    reached = sum(then.end_offsets) + then.appended
    if (ends := sum(now.end_offsets)) < reached:
        return f"has lost records: its partitions end at {ends} together, they had reached {reached}"
    for partition, (start, before) in enumerate(zip(now.start_offsets, then.start_offsets, strict=False)):
        if start > before:
            return f"has lost records: partition {partition} begins at {start}, before it began at {before}"
    return ""


def topic_trouble(then: TopicState, now: TopicState | None) -> str:
    """Returns why records may be missing from a table's topic, or not be in order, in words; "" if it is as it was.
    `now`: None if it does not exist."""
    if now is None:
        return "is gone"
    if now.topic_id != then.topic_id:
        return "was deleted and recreated"
    return _repartitioned(now, then) or loss_of(now, then)


def _repartitioned(now: TopicState, then: TopicState) -> str:
    if not then.end_offsets or len(now.end_offsets) == len(then.end_offsets):
        return ""
    return (
        f"has {len(now.end_offsets)} partitions, but had {len(then.end_offsets)}: the records of a key would no longer "
        "be in order"
    )

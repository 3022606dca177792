"""The history and the topics' incarnations with which a first start or a heal goes on (see ProgressRecord)."""

import secrets
from collections.abc import Iterable

from cdc.config.settings import PipelineConfig
from cdc.kafka.state_reader import read_captured, read_progress
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.control import PositionRecord, TopicState
from cdc.model.errors import BrokerError
from cdc.model.events import TableId
from cdc.postgres.source import Slot
from cdc.tables.continuity import history_of, incarnation_of, published_states


def identities(
    config: PipelineConfig,
    admin: TopicAdmin,
    topics: Iterable[TopicDescription],
    previous: PositionRecord | None,
    epoch: int,
    *,
    continues: bool,
) -> tuple[str, dict[str, TopicState]]:
    """Returns the history, and the topics as they are now, each with its incarnation. `epoch`: the one that begins.
    `continues`: what the records say of history and topics is not older than what readers know. Raises BrokerError,
    UnreachableError, ConnectionLost."""
    published = read_progress(config)
    recorded, published_topics = previous.topics if previous is not None else {}, published_states(published)
    # Those of tables that are stopped, or of which the state was lost, were not watched.
    earlier = {schema.topic for schema in read_captured(config).schemas.values()}

    def identified(name: str, now: TopicState) -> TopicState:
        known = [states[name] for states in (recorded, published_topics) if name in states]
        is_unsure = name in earlier and not (continues and name in recorded)
        return now.model_copy(update={"incarnation": incarnation_of(now, known, str(epoch), is_unsure=is_unsure)})

    history = (history_of(previous, published) if continues else "") or secrets.token_hex(8)
    return history, {name: identified(name, now) for name, now in admin.states(topics).items()}


def went_back(position: PositionRecord | None, slot: Slot | None) -> bool:
    """Says whether the slot was confirmed beyond the position: the state may be an older copy, with which newer epochs
    and the offsets that readers noted are forgotten."""
    if position is None or position.phase != "streaming" or slot is None or slot.confirmed_flush_lsn is None:
        return False
    return slot.confirmed_flush_lsn > position.resume_lsn


def require_no_others_records(table: TableId, name: str, topic: TopicState | None) -> None:
    """Raises BrokerError for the topic of a table that was never captured and has records: capture has written none of
    them. `topic`: as it is now; None: it was just made."""
    if topic is not None and any(topic.end_offsets):
        raise BrokerError(
            f"topic {name} has records, but table {table} was never captured: another program writes to it",
            f"choose another topics.prefix; or, if nobody needs the topic, delete it, then cdc table start {table}",
        )

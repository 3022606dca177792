"""Topics of events. They belong to applications, which add topics while capture runs."""

from typing import Final

import structlog

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.formats.unpublishable import record_bytes
from cdc.kafka.daemon_thread import call_in_thread
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, record_limits
from cdc.model.control import EventTopicRecord
from cdc.model.topic_record import EventDestination, TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import WhileWaiting

log = structlog.get_logger(__name__)

# The names come from data: with a mistake in a route there would be a topic for each event.
EVENT_TOPICS_MAX: Final = 1000


class EventTopicCreator:
    """Creates topics of events at their first event; existing ones are used as they are."""

    def __init__(self, admin: TopicAdmin, config: TopicConfig, kafka: KafkaConfig) -> None:
        self._admin = admin
        self._config = config
        self._state = Topics(config.prefix).state
        self._kafka = kafka
        self._known: dict[str, TopicDescription] = {}
        self._unrecorded: list[str] = []
        self.record_bytes_max: dict[str, int] = {}  # topic → size limit of a record

    def unrecorded(self) -> list[TopicRecord]:
        """Returns the records of topics that this session writes to for the first time, for the open transaction. They
        tell the next session where a transaction may hang."""
        names, self._unrecorded = self._unrecorded, []
        return [EventTopicRecord(topic=name).to(self._state) for name in names]

    def accepted(self, record: TopicRecord, while_waiting: WhileWaiting) -> TopicRecord:
        """Returns the record, or the dead letter that replaces it if its topic refuses it, cut to the size limit of its
        own topic. Calls `while_waiting` while a topic is being created. Raises BrokerError, UnreachableError,
        ConnectionLost."""
        destination = record.destination
        assert destination is not None
        if destination.cut is not None:  # a dead letter
            self._open(record.topic, while_waiting)
            bytes_max = self.record_bytes_max[record.topic]
            return record if _bytes(record) <= bytes_max else destination.cut(bytes_max)
        why_not = self._refusal(record, destination, while_waiting)
        return record if why_not is None else self.accepted(destination.refused(why_not), while_waiting)

    def _refusal(self, record: TopicRecord, destination: EventDestination, while_waiting: WhileWaiting) -> str | None:
        """Returns why the topic refuses the record, or None."""
        if record.topic not in self._known and len(self._known) >= EVENT_TOPICS_MAX:
            return f"there are {EVENT_TOPICS_MAX} topics of events already"
        topic = self._open(record.topic, while_waiting)
        if destination.partition is not None and destination.partition >= topic.partition_count:
            return f"topic {topic.name} has no partition {destination.partition}"
        if not destination.has_key and "compact" in topic.cleanup_policy:
            return f"topic {topic.name} is compacted and takes no record without a key"
        size, bytes_max = _bytes(record), self.record_bytes_max[topic.name]
        if size > bytes_max:
            return f"a record of {size} bytes is larger than topic {topic.name} takes, {bytes_max}"
        return None

    def _open(self, name: str, while_waiting: WhileWaiting) -> TopicDescription:
        if name not in self._known:
            topic = call_in_thread(lambda: self._admin.open_event_topic(name, self._config), while_waiting)
            self._known[name] = topic
            log.info("topic of events found or created", topic=name, partitions=topic.partition_count)
            self._unrecorded.append(name)
            self.record_bytes_max |= record_limits(self._kafka, [topic])
        return self._known[name]


def _bytes(record: TopicRecord) -> int:
    return record_bytes((record.key, record.value, record.headers))

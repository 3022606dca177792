"""Topics of events: they belong to applications, which name new ones while capture runs."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import structlog

from cdc.config import TopicConfig
from cdc.kafka.topics import TopicAdmin, TopicDescription
from cdc.ports import TopicRecord, WhileWaiting

log = structlog.get_logger(__name__)

# A name that is taken from data: a mistake in it would make a topic for each event.
EVENT_TOPICS_MAX: Final = 1000
_WAIT_S: Final = 0.2


class EventTopics:
    """Creates them when they are first met; those that exist are used as they are."""

    def __init__(self, admin: TopicAdmin, config: TopicConfig) -> None:
        self._admin = admin
        self._config = config
        self._known: dict[str, TopicDescription] = {}

    def accepted(self, record: TopicRecord, while_waiting: WhileWaiting) -> TopicRecord:
        """The record, or what stands for it where its topic can't take it. Calls `while_waiting` while a topic is being
        created. Raises BrokerError, UnreachableError, ConnectionLost."""
        place = record.place
        assert place is not None
        topic = self._known.get(record.topic)
        if topic is None:
            if len(self._known) >= EVENT_TOPICS_MAX:
                return place.refused(f"there are {EVENT_TOPICS_MAX} topics of events already")
            topic = self._known[record.topic] = self._opened(record.topic, while_waiting)
        if place.partition is not None and place.partition >= topic.partition_count:
            return place.refused(f"topic {topic.name} has no partition {place.partition}")
        if not place.has_key and "compact" in topic.cleanup_policy:
            return place.refused(f"topic {topic.name} is compacted and takes no record without a key")
        return record

    def _opened(self, name: str, while_waiting: WhileWaiting) -> TopicDescription:
        with ThreadPoolExecutor(1, "event topic") as aside:
            asked: Future[Mapping[str, TopicDescription]] = aside.submit(
                self._admin.open_event_topic, name, self._config
            )
            while not wait([asked], _WAIT_S).done:
                while_waiting()
        topic = asked.result()[name]
        log.info("topic of events", topic=name, partitions=topic.partition_count)
        return topic

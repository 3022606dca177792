"""The contents of the state and progress topics for the status, followed from their beginning."""

from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.formats.unpublishable import UNPUBLISHED_KEY, UnpublishedRecord
from cdc.kafka.compacted_tail import CompactedTail
from cdc.kafka.snapshot_watch import SnapshotWatch
from cdc.kafka.state_reader import records_of
from cdc.model.comparisons import COMPARISON_KEY, ComparisonRecord
from cdc.model.control import SINK_ERROR_KEY, SinkErrorRecord
from cdc.model.errors import GapError
from cdc.model.lost_events import LOST_KEY, LostEventsRecord
from cdc.model.table_state import TABLE_KEY, TableRecord
from cdc.model.topics import Topics
from cdc.status.facts import TopicFacts

POLL_S: Final = 0.1


class KafkaTopicReader:
    """Implements cdc.status.facts.TopicReader. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, topics: Topics) -> None:
        self._kafka = kafka
        self._topics = topics
        self._tail: CompactedTail | None = None
        self._watch: SnapshotWatch | None = None

    def read(self) -> TopicFacts | None:
        """Returns the facts; None if capture has never run on the prefix. Raises WatershedError if the brokers do not
        answer."""
        tail, watch = self._tail, self._watch
        if tail is None or watch is None:
            tail = CompactedTail(self._kafka, [self._topics.state, self._topics.progress])
            watch = SnapshotWatch(self._topics, tail)
            try:
                if not tail.exist():
                    tail.close()
                    return None
                watch.read_to_end()
            except BaseException:
                tail.close()
                raise
            self._tail, self._watch = tail, watch
        tail.require_answer()
        watch.poll(POLL_S)
        return self._facts(tail, watch)

    def _facts(self, tail: CompactedTail, watch: SnapshotWatch) -> TopicFacts:
        position, damage = None, None
        try:
            position = watch.position()
        except GapError as error:
            damage = error
        state, progress = ((topic, tail.latest[topic]) for topic in (self._topics.state, self._topics.progress))
        unpublished = records_of(UnpublishedRecord, UNPUBLISHED_KEY, *state)
        return TopicFacts(
            position=position,
            damage=damage,
            progress=watch.published(),
            tables={record.table: record for record in records_of(TableRecord, TABLE_KEY, *state)},
            snapshots={table: watch.progress_of(record) for table, record in watch.snapshots().items()},
            dead_letters={record.table: record.dead_letters for record in unpublished},
            skipped={record.table: record.skipped for record in unpublished},
            lost_events=records_of(LostEventsRecord, LOST_KEY, *state),
            sinks=tuple(watch.sinks()),
            comparisons={one.sink: one for one in records_of(ComparisonRecord, COMPARISON_KEY, *progress)},
            sink_errors={one.sink: one for one in records_of(SinkErrorRecord, SINK_ERROR_KEY, *progress)},
        )

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail, self._watch = None, None

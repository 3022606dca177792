"""The contents of the state and progress topics for the status, followed from their beginning."""

from contextlib import ExitStack, closing
from typing import Final

from cdc.config.config_file import Config
from cdc.kafka.state_reader import record_of, records_of
from cdc.model.comparisons import ComparisonRecord
from cdc.model.control import UnpublishedRecord
from cdc.model.errors import GapError
from cdc.model.job_records import QueryRecord, RebuildRecord, SinkErrorRecord
from cdc.model.lost_events import LostEventsRecord
from cdc.model.table_state import SelectionRecord, TableRecord
from cdc.model.topics import Topics
from watershed.status.facts import TopicFacts
from watershed.status.snapshot_watch import SnapshotWatch

POLL_S: Final = 0.1


class KafkaTopicReader:
    """Implements watershed.status.facts.TopicFactsReader. Not thread-safe."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._watch: SnapshotWatch | None = None

    def read(self) -> TopicFacts:
        """Returns the facts. Raises WatershedError if the brokers do not answer."""
        if self._watch is None:
            with ExitStack() as undo:
                watch = undo.enter_context(closing(SnapshotWatch.of(self._config)))
                if not watch.tail.exist():
                    return TopicFacts(prefixes=watch.tail.prefixes())
                watch.read_to_end()
                undo.pop_all()
            self._watch = watch
        self._watch.tail.require_answer()
        self._watch.poll(POLL_S)
        return self._facts(self._watch)

    def _facts(self, watch: SnapshotWatch) -> TopicFacts:
        position, damage = None, None
        try:
            position = watch.position()
        except GapError as error:
            damage = error
        state, progress = ((topic, watch.tail.latest[topic]) for topic in (self._topics.state, self._topics.progress))
        unpublished = records_of(UnpublishedRecord, *state)
        return TopicFacts(
            position=position,
            damage=damage,
            progress=watch.published(),
            tables={record.table: record for record in records_of(TableRecord, *state)},
            selection=record_of(SelectionRecord, SelectionRecord.KEY, *state),
            snapshots={table: watch.progress_of(record) for table, record in watch.snapshots().items()},
            dead_letters={record.table: record.dead_letters for record in unpublished},
            skipped={record.table: record.skipped for record in unpublished},
            lost_events=records_of(LostEventsRecord, *state),
            sinks=watch.sinks(),
            comparisons={one.sink: one for one in records_of(ComparisonRecord, *progress)},
            sink_errors={one.sink: one for one in records_of(SinkErrorRecord, *progress)},
            rebuilds={one.sink: one for one in records_of(RebuildRecord, *progress)},
            queries=records_of(QueryRecord, *progress),
            prefixes=watch.tail.prefixes() if position is None and damage is None else (),
        )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

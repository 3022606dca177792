"""Plans the batches of a sink's stream, in the planner process: the Python process that the driver's JVM keeps for the
source of a query. It shares no memory with the driver's own Python.

A batch begins where the sink's position says that the store is: the job publishes it before a batch ends, and reads it
from the store when it starts. Spark's checkpoint notes for each batch, for operators, where it began (and where a
bounded one ends at most), with the identity of each topic; a batch that is repeated is planned again. How far a live
batch gets is decided while it runs, so that after a crash the running batch is repeated from the position; the store's
guard by version makes that harmless.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from cdc.config.settings import KafkaConfig
from cdc.model.control import ProgressRecord
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from cdc.tables.continuity import topic_id_of
from spark_jobs.applied import AppliedPosition, FoundTopic, Offsets, covers
from spark_jobs.control_reader import ControlReader
from spark_jobs.source.reading import Partition
from spark_jobs.source.shares import Share
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.topic_ends import TopicEnds

POSITION_S_MAX: Final = 30.0  # until the job's first position is in the progress topic
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Where a batch begins, and up to where the topics went then."""

    start_offsets: Offsets
    end_offsets: Offsets
    incarnations: Mapping[str, str]  # of the topics, see ProgressRecord.incarnations
    # Of our own topics: a live batch ends early if a record from these offsets on asks for it.
    control_offsets: Mapping[Partition, int]
    first_offsets: Offsets = field(default_factory=dict)  # the topics' first records, where that is known

    @property
    def has_records(self) -> bool:
        """Says whether there is something to read, or was a moment ago."""
        return any(self.start_offsets[topic] != end_offsets for topic, end_offsets in self.end_offsets.items())

    def ids_of(self, share: Share) -> dict[str, str]:
        """Returns topic → id of the share's topics."""
        topics = {partition.topic for partition in share.start_offsets}
        return {topic: topic_id_of(self.incarnations[topic]) for topic in topics}

    def first_offsets_of(self, share: Share) -> dict[Partition, int]:
        """Returns where the share's partitions have their first records, if they begin before: what was there is
        known to be deleted, and what is deleted later is not passed over."""
        found = {
            partition: first
            for partition in share.start_offsets
            for first in self.first_offsets.get(partition.topic, ())[partition.number :][:1]
        }
        return {partition: first for partition, first in found.items() if first > share.start_offsets[partition]}

    def encoded(self, options: SinkStreamOptions, plan_number: int) -> dict[str, Any]:
        """Returns the offset for Spark's checkpoint. `plan_number`: rises by one with each plan, in each checkpoint."""
        topics = {
            topic: {
                "incarnation": self.incarnations.get(topic, ""),
                "from": list(self.start_offsets[topic]),
                **({} if options.live_s else {"to": list(end_offsets)}),
            }
            for topic, end_offsets in sorted(self.end_offsets.items())
        }
        own = {"sink": options.name, "generation": options.generation, "job": options.job_id[0], "batch": plan_number}
        return {**own, "topics": topics}


def initial_offset(options: SinkStreamOptions) -> dict[str, Any]:
    """Returns the offset before the first batch."""
    return {"sink": options.name, "generation": options.generation, "job": 0, "batch": 0, "topics": {}}


def check_offset(offset: Mapping[str, Any], options: SinkStreamOptions) -> None:
    """Raises ConfigError if a checkpoint is of another sink or generation."""
    found = offset.get("sink"), offset.get("generation")
    if found != (options.name, options.generation):
        raise ConfigError(
            f"the checkpoint is of sink {found[0]}, generation {found[1]}; the query is of sink {options.name}, "
            f"generation {options.generation}",
            "choose another spark.checkpoint_location: each pipeline has a folder of its own",
        )


class Planner:
    """Follows the pipeline's topics. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, prefix: str, options: SinkStreamOptions) -> None:
        """Raises ConfigError, BrokerError."""
        self._options = options
        self._topics = Topics(prefix)
        self._control = ControlReader(kafka, self._topics, options.holds)
        self._ends = TopicEnds(kafka)
        self._progress: ProgressRecord | None = None
        self._read_out: set[str] = set()  # of `_left`, those that were read to their ends

    def close(self) -> None:
        self._control.close()

    def plan(self) -> BatchPlan:
        """Plans the next batch: the topics that are those that capture has published, from the sink's position on.
        Raises WatershedError."""
        record = self._position()
        left_out = {topic for topic, refused in record.refused.items() if refused.is_left_out}
        topics = sorted({schemas.newest.topic for schemas in self._control.schema_histories.values()} - left_out)
        left = self._left(topics, record) if self._options.at_cuts else set()
        if self._options.at_cuts and covers(record.end_offsets, record.cut_offsets) and left <= self._read_out:
            return BatchPlan({}, {}, {}, {})
        self._ends.set_topics(topics)
        found = self._ends.ask()
        position = AppliedPosition.of(record)
        position.add_published([self._progress] if self._progress is not None else [], ())
        readable = {topic: there for topic, there in found.items() if position.check_topic(topic, there) is None}
        start_offsets = {topic: _start_offsets(position, topic, there) for topic, there in readable.items()}
        end_offsets: Offsets = {topic: there.end_offsets for topic, there in readable.items()}
        self._read_out = {
            topic for topic in left if topic not in end_offsets or covers(start_offsets, {topic: end_offsets[topic]})
        }
        return BatchPlan(
            start_offsets,
            _up_to_cut(record.cut_offsets, start_offsets, end_offsets, left) if self._options.at_cuts else end_offsets,
            dict(position.incarnations),
            {Partition(topic, 0): offset for topic, offset in self._control.reached().items()},
            {topic: there.start_offsets for topic, there in readable.items()},
        )

    def _left(self, topics: Iterable[str], record: SinkRecord) -> set[str]:
        """Returns the topics of tables that capture publishes no more: no cut has them, and they do not grow."""
        if self._progress is None or not record.cut_offsets:
            return set()
        return set(topics) - self._progress.end_offsets.keys() - record.cut_offsets.keys()

    def _position(self) -> SinkRecord:
        """Returns the position that this job published last."""
        key = SinkRecord.key_of(self._options.name, self._options.generation)
        deadline = time.monotonic() + POSITION_S_MAX
        while True:
            update = self._control.read()
            if update.progress:
                self._progress = update.progress[-1]
            record = self._control.sinks.get(key)
            if record is not None and record.job == self._options.job_id:
                return record
            if time.monotonic() > deadline:
                raise WatershedError(
                    f"{self._options.name}: the position of job {self._options.job_id[0]} is not in topic "
                    f"{self._topics.progress}",
                    "nothing to do if another job has taken over; otherwise start the sink again",
                )
            time.sleep(_PAUSE_S)


def _start_offsets(position: AppliedPosition, topic: str, found: FoundTopic) -> tuple[int, ...]:
    written = position.written.get(topic, ())
    return tuple(written[number] if number < len(written) else 0 for number in range(len(found.end_offsets)))


def _up_to_cut(cut: Offsets, start_offsets: Offsets, end_offsets: Offsets, left: Collection[str]) -> Offsets:
    """Returns the ends of a batch that reads to the cut, and topics in `left` to their ends. Nothing is read while a
    part of it is not readable: a commit returns before its markers are in all partitions."""
    wanted = {**cut, **{topic: end_offsets[topic] for topic in left if topic in end_offsets}}
    reached = {
        topic: tuple(max(start, end) for start, end in zip_longest(starts, wanted.get(topic, ()), fillvalue=0))
        for topic, starts in start_offsets.items()
    }
    return reached if covers(end_offsets, reached) else start_offsets

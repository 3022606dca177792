"""What a sink publishes is acknowledged, or an error."""

from contextlib import closing

import pytest

from cdc.config.settings import KafkaConfig
from cdc.kafka.compacted import read_latest
from cdc.model.errors import WatershedError
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from spark_jobs.progress_writer import ProgressWriter
from tests.conftest import KafkaBroker
from tests.support.feed import Feed

RECORD = SinkRecord(
    sink="cache",
    generation=2,
    end_offsets={"t": (1,)},
    applied_lsn=5,
    epoch=1,
    commit_ts_us=0,
    applied_ts_us=0,
    sweeps={},
    written=0,
    stale=0,
)


def test_a_published_record_is_in_the_topic_at_once(kafka: KafkaBroker, unique: str) -> None:
    Feed(kafka.bootstrap_servers, unique)
    config = KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)
    with closing(ProgressWriter(config, Topics(unique))) as writer:
        writer.publish(RECORD)
        assert read_latest(config, f"{unique}.progress") == {"sink/cache/2": RECORD.encode()}


def test_a_record_that_is_not_acknowledged_is_an_error(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.progress_writer.ACKNOWLEDGE_S_MAX", 0.5)
    with (
        closing(ProgressWriter(KafkaConfig(bootstrap_servers="127.0.0.1:1"), Topics(unique))) as writer,
        pytest.raises(WatershedError, match=rf"{unique}\.progress"),
    ):
        writer.publish(RECORD)

"""A sink's dead letters in their topic, on a real broker."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from configuration.settings import Config, load_config
from monitoring.sink_letters import discard_letters, read_letters
from spark_jobs.dead_letters import DeadLetters
from tests.conftest import KafkaBroker
from tests.support.sink_job import write_config
from tests.support.topics import delete_topic
from tests.support.waiting import eventually
from tests.unit.monitoring.test_rejected_rows import ROW


@pytest.fixture
def config(kafka: KafkaBroker, unique: str, tmp_path: Any) -> Iterator[Config]:
    yield load_config(write_config(tmp_path, kafka.bootstrap_servers, unique, {"cache": {"url": "redis://c"}}))
    delete_topic(kafka.bootstrap_servers, f"{unique}.dead-letter.cache")


def test_letters_are_published_followed_and_closed(config: Config) -> None:
    with closing(DeadLetters(config.kafka, config.topics, "cache", 1)) as letters:
        assert letters.open == {}
        letters.publish({"a/1": ROW, "a/2": ROW})
        letters.publish({"a/2": ROW.model_copy(update={"version": 6}), "a/1": None})
        assert letters.open == {"a/2": 6}
        (read,) = read_letters(config, ["cache"])
        assert (read.sink, read.key, read.row.version) == ("cache", "a/2", 6)
        letters.publish({"a/3": ROW})
    with closing(DeadLetters(config.kafka, config.topics, "cache", 1)) as again:
        assert again.open == {"a/2": 6, "a/3": 5}
        discard_letters(config, [read])

        def is_noticed() -> bool:
            again.follow()
            return again.open == {"a/3": 5}

        eventually(is_noticed, 30, lambda: f"an operator's discarding is noticed: {again.open}")

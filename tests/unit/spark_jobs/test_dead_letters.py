"""A sink's dead letters in their topic, on a real broker."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cdc.config.config_file import Config, load_config
from cdc.kafka import topic_reader
from cdc.kafka.signals import deliver
from cdc.model.topic_record import TopicRecord
from spark_jobs.dead_letters import DeadLetterTopic
from tests.conftest import KafkaBroker
from tests.support.sink_job import write_config
from tests.support.topics import delete_topic
from tests.support.waiting import eventually
from tests.unit.cdc.model.test_rejected_rows import ROW
from watershed.client.dead_letters import discard_dead_letters, read_dead_letters


@pytest.fixture
def config(kafka: KafkaBroker, unique: str, tmp_path: Any) -> Iterator[Config]:
    yield load_config(write_config(tmp_path, kafka.bootstrap_servers, unique, {"cache": {"url": "redis://c"}}))
    delete_topic(kafka.bootstrap_servers, f"{unique}.dead-letter.cache")


def test_letters_are_published_followed_and_closed(config: Config) -> None:
    with closing(DeadLetterTopic(config.kafka, config.topics, "cache", 4)) as dead_letters:
        assert dead_letters.open == {}
        dead_letters.publish({"4/public.a/1": ROW, "4/public.a/2": ROW})
        dead_letters.publish({"4/public.a/2": ROW.model_copy(update={"version": 6}), "4/public.a/1": None})
        assert dead_letters.open == {"4/public.a/2": 6}
        (read,) = read_dead_letters(config, ["cache"])
        assert (read.sink, read.key, read.row.version) == ("cache", "4/public.a/2", 6)
        dead_letters.publish({"4/public.a/3": ROW})
    with closing(DeadLetterTopic(config.kafka, config.topics, "cache", 4)) as again:
        assert again.open == {"4/public.a/2": 6, "4/public.a/3": 5}
        discard_dead_letters(config, [read])

        def is_noticed() -> bool:
            again.follow()
            return again.open == {"4/public.a/3": 5}

        eventually(is_noticed, 30, lambda: f"an operator's discarding is noticed: {again.open}")


def test_what_was_published_is_not_forgotten_for_an_earlier_record_that_is_read_back(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter is closed and opened again: read back, the tombstone comes first. Without the letter, tasks would not
    close it later, and the sink's record would not count it."""
    monkeypatch.setattr(topic_reader, "FETCH_COUNT", 1)
    key = "4/public.a/1"
    with closing(DeadLetterTopic(config.kafka, config.topics, "cache", 4)) as dead_letters:
        dead_letters.publish({key: ROW})
        dead_letters.publish({key: None})
        dead_letters.publish({key: ROW.model_copy(update={"version": 8})})
        seen: list[dict[str, int]] = []

        def has_read_all() -> bool:
            dead_letters.follow()
            seen.append(dict(dead_letters.open))
            return dead_letters._tail.reached(dead_letters._topic) >= 3

        eventually(has_read_all, 30, "all three records are read back")
        assert all(open_dead_letters == {key: 8} for open_dead_letters in seen)
        discard_dead_letters(config, read_dead_letters(config, ["cache"]))

        def is_discarded() -> bool:
            dead_letters.follow()
            return dead_letters.open == {}

        eventually(is_discarded, 30, "what others write later counts")


def test_generations_have_letters_of_their_own(config: Config) -> None:
    """Seen: the generation that is built closed a letter of the serving one, which still lacked the row."""
    with (
        closing(DeadLetterTopic(config.kafka, config.topics, "cache", 4)) as serving,
        closing(DeadLetterTopic(config.kafka, config.topics, "cache", 5)) as built,
    ):
        serving.publish({"4/public.a/1": ROW})
        built.publish({"5/public.a/1": ROW, "5/public.a/2": ROW})
        built.publish({"5/public.a/1": None})
        assert (serving.open, built.open) == ({"4/public.a/1": 5}, {"5/public.a/2": 5})
        assert [dead_letter.generation for dead_letter in read_dead_letters(config, ["cache"])] == [4, 5]
    with closing(DeadLetterTopic(config.kafka, config.topics, "cache", 5)) as built:
        assert built.open == {"5/public.a/2": 5}
        deliver(config.kafka, TopicRecord(f"{config.topics.prefix}.dead-letter.cache", b"public.a/9", ROW.encode()))
    with closing(DeadLetterTopic(config.kafka, config.topics, "cache", 5)) as built:
        built.close_others([5])
        assert [dead_letter.key for dead_letter in read_dead_letters(config, ["cache"])] == ["5/public.a/2"]

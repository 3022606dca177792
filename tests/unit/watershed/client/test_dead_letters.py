"""What is read without letters; reading and discarding them is in tests/unit/spark_jobs/test_dead_letters.py."""

from pathlib import Path

from cdc.config.config_file import load_config
from cdc.kafka.state_reader import read_captured
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import write_config
from watershed.client.dead_letters import read_dead_letters


def test_a_prefix_without_letters_has_none_and_its_newest_schemas_are_known(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("a", {"id": (20, "bigint")}, ["id"])
    feed.begin()
    feed.alter_table("a", {"id": (20, "bigint"), "name": (25, "text")})
    feed.commit()
    config = load_config(write_config(tmp_path, kafka.bootstrap_servers, unique, {"cache": {"url": "redis://c"}}))
    assert read_dead_letters(config, ["cache"]) == []
    assert read_captured(config).schemas == {feed.schemas["a"].table: feed.schemas["a"]}

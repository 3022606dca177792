"""What `cdc sink run` refuses before it starts anything."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc.config import Config, load_config
from cdc.errors import ConfigError
from spark_jobs.runner import run_sinks
from tests.sink_job import write_config

CACHE = {"cache": {"url": "redis://127.0.0.1:1"}}


def config(folder: Path, sinks: Mapping[str, object], **spark: object) -> Config:
    return load_config(write_config(folder, "127.0.0.1:1", "shop", sinks, **spark))


@pytest.mark.parametrize("name", ["nope", "search"])
def test_a_sink_without_a_section_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"no sink '{name}'") as refused:
        run_sinks(config(tmp_path, CACHE), [name])
    assert "sinks with a section are: cache; there can be search, cache, warehouse" in refused.value.hint


def test_a_catalog_of_another_kind_is_refused(tmp_path: Path) -> None:
    section = {"warehouse": {"catalog_uri": "jdbc:postgresql://h/db", "location": "/x"}}
    with pytest.raises(ConfigError, match=r"sinks\.warehouse\.catalog_uri"):
        run_sinks(config(tmp_path, section), ["warehouse"])


def test_checkpoints_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark\.checkpoint_location"):
        run_sinks(config(tmp_path, CACHE, checkpoint_location="s3://bucket/x"), ["cache"])

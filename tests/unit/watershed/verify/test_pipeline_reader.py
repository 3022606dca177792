"""Waiting for a sink that makes no progress ends, with a next step that exists."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cdc.model.topics import Topics
from tests.support.pipeline_records import SOURCE, FakeTail, position
from watershed.cli.verify import verify
from watershed.client.pipeline_watch import PipelineWatch
from watershed.client.source_facts import SourceEnd
from watershed.verify.pipeline_reader import PipelineReader, SinkStalledError


def test_a_sink_that_makes_no_progress_is_said_with_the_option_that_waits_longer() -> None:
    pipeline: Any = PipelineReader.__new__(PipelineReader)
    topics = Topics("shop")
    tail = FakeTail(topics)  # nobody publishes anything
    tail.publish(position(400))
    pipeline._timeout_s, pipeline._watch = 0.0, PipelineWatch(topics, tail)  # type: ignore[arg-type]
    end = SourceEnd(SOURCE.system_identifier, SOURCE.database, SOURCE.timeline, 500, 8192, 16 * 1024 * 1024)
    pipeline._source = type("Source", (), {"read_end": lambda _: end})()
    with pytest.raises(SinkStalledError, match="sink search does not make progress") as error:
        pipeline.wait_until_applied("search")
    option = error.value.hint.rpartition(" ")[2]
    app = typer.Typer()
    app.command()(verify)
    assert option in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout

"""A sink's process is killed while it writes: what it called written stays, and a replay makes the store equal."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest
from pydantic import SecretStr

from cdc.config.stores import CacheConfig, SearchConfig
from sinks.contract import Outcome, Sink
from sinks.reduction import reduce_changes
from sinks.registry import make_sink
from tests.conformance.model import Model, assert_rows
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.faults.sink_writer import batches

pytestmark = pytest.mark.whole

TABLES = (CUSTOMERS, ORDER_LINES)


@dataclass(frozen=True)
class Place:
    name: str
    url: str
    prefix: str

    def open(self) -> Sink:
        section = {"search": SearchConfig, "cache": CacheConfig}[self.name](url=SecretStr(self.url))
        return make_sink(self.name, section, self.prefix)

    def writer(self, seed: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "tests.faults.sink_writer", self.name, self.url, self.prefix, str(seed)]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=["search", "cache"])
def place(request: pytest.FixtureRequest, unique: str) -> Iterator[Place]:
    server = {"search": "opensearch", "cache": "redis"}[request.param]
    yield Place(request.param, request.getfixturevalue(server), unique)


@pytest.fixture
def sink(place: Place) -> Iterator[Sink]:
    made = place.open()
    made.begin_generation(1)
    for table in TABLES:
        made.prepare(table.schema)
    yield made
    made.close()


@pytest.mark.promise(2)
@pytest.mark.parametrize("announced", [1, 3, 8])
def test_what_was_called_written_survives_kill_9_and_a_replay_ends_equal(
    place: Place, sink: Sink, announced: int
) -> None:
    seed = announced
    writer = place.writer(seed)
    try:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == announced:
                break
    finally:
        writer.kill()  # while it applies the next batch, or one behind it
        writer.wait()
    assert writer.returncode == -9
    written = max(map(int, writer.stdout), default=announced)
    after = list(islice(batches(seed), written + 3))
    logged_written = [change for batch in after[:written] for change in batch]
    results = sink.apply(reduce_changes(logged_written))
    assert {result.outcome for result in results} == {Outcome.STALE}, "all of it is there, or newer"

    # The whole batch again, and those after it.
    for batch in after[written - 1 :]:
        sink.apply(reduce_changes(batch))
    model = Model()
    for batch in after:
        model.apply_all(batch)
    sink.make_readable({table.id for table in TABLES})
    for table in TABLES:
        assert_rows(table, list(sink.rows(table.id)), model, exact_json=True)

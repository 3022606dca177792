"""Chunks beside a workload that touches them all, while capture is killed: a tenth of what snapshot_campaign does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer
from tests.support.captured import NAIVE, Captured, under_capture
from tests.support.hot_snapshots import SETTINGS, HotRun, compare_stores, evidence, published, wrong_rows
from tests.support.hot_workload import SCHEMA, TABLES
from tests.support.sink_job import SinkJob

pytestmark = [pytest.mark.whole, pytest.mark.long]

CHUNKS = 1_000
KILLS = 5


@pytest.fixture
def hot(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        made.settings = dict(SETTINGS)
        yield made


@pytest.mark.promise(2)
@pytest.mark.invariant(13)
def test_no_row_is_stale_or_comes_back(hot: Captured, redis: str, tmp_path: Path) -> None:
    """Neither in the topics nor in a store."""
    sinks: dict[str, Any] = {"cache": {"url": redis}}
    hot.settings |= {
        "sinks": sinks,
        "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
    }
    run = HotRun(hot, seed=1)
    run.begin()
    with SinkJob(hot.config(), "cache", log_level="info") as job:
        run.churn(CHUNKS, KILLS)
        job.wait_applied(hot.progress(), "cache")
        assert wrong_rows(compare_stores(hot, ["cache"])) == {}
        run.snapshot_all()
        job.wait_applied(hot.progress(), "cache")
        assert wrong_rows(compare_stores(hot, ["cache"])) == {}
    reported = published(evidence(hot))
    assert reported["complaints"] == []
    assert (reported["epoch"], reported["stale"], reported["resurrected"]) == (1, 0, 0)
    assert reported["chunk_rows"] > CHUNKS
    assert reported["sweeps"] > len(TABLES)


def test_the_published_rule_leaves_stale_rows(hot: Captured) -> None:
    """The control: the same run notices a rule that is wrong."""
    run = HotRun(hot, seed=2, module=NAIVE)
    run.begin()
    run.churn(CHUNKS // 4, kills=1)
    reported = published(evidence(hot))
    assert reported["stale"] > 0, reported

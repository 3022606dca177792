"""A gap as its stores see it: the slot was dropped while rows were deleted, inserted and updated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.hot_snapshots import compare_stores, wrong_rows
from tests.support.hot_workload import NOTES, PLACES, SCHEMA, fill
from tests.support.sink_job import SinkJob
from tests.support.stores import ALL, sinks_section

pytestmark = pytest.mark.long

TABLES = (PLACES, NOTES)
WAIT_S = 240.0  # other tests' servers may share the machine


@pytest.fixture
def captured(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    opensearch: str,
    redis: str,
    fresh_database: str,
    unique: str,
    tmp_path: Path,
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        made.settings = {
            "sinks": sinks_section(tmp_path, opensearch, redis),
            "spark": {
                "checkpoint_location": str(tmp_path / "checkpoints"),
                "warehouse_trigger_ms": 1_000,
                "options": INTERPRETED,
            },
        }
        yield made


@pytest.mark.promise(4)
@pytest.mark.promise(2)
def test_after_a_healed_gap_and_a_truncate_every_store_is_the_source(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection)
    captured.start()
    captured.await_caught_up()
    with SinkJob(captured.config(), *ALL) as job:
        job.wait_applied(captured.progress(), *ALL, deadline_s=WAIT_S)
        captured.query("TRUNCATE notes")
        captured.query("INSERT INTO notes SELECT 'note ' || n, 'after', now() FROM generate_series(1, 20) AS n")
        captured.await_caught_up()
        job.wait_applied(captured.progress(), *ALL, deadline_s=WAIT_S)
        assert wrong_rows(compare_stores(captured, ALL)) == {}
        captured.end()
        captured.drop_slot()
        places = [place for (place,) in captured.query("SELECT place FROM places ORDER BY place")]
        captured.query("DELETE FROM places WHERE place % 3 = 0")
        captured.query("UPDATE places SET moves = moves + 1 WHERE place % 4 = 0")
        captured.query("INSERT INTO notes VALUES ('meanwhile', NULL, NULL)")
        captured.query("UPDATE notes SET name = name || '!' WHERE name LIKE 'note 1%'")
        captured.start().await_refusal()
        assert wrong_rows(compare_stores(captured, ALL)).keys() == set(ALL)
        assert captured.ask("heal").is_accepted
        captured.await_caught_up()
        job.wait_applied(captured.progress(), *ALL, deadline_s=WAIT_S)
        assert wrong_rows(compare_stores(captured, ALL)) == {}
    assert captured.judge().epoch == 2
    published = sorted(dict(c.key)["place"] for c in captured.changes() if c.epoch == 2 and c.table == PLACES)
    assert published == [place for place in places if place % 3 == 0 or place % 4 == 0], "what differs, and no more"

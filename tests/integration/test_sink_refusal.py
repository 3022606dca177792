"""A row that one store can't hold stops that sink, says where it is, and leaves the others alone."""

from pathlib import Path

from tests.conftest import KafkaBroker
from tests.feed import Feed
from tests.sink_job import SinkJob, write_config
from tests.stores import sinks_section, stored_rows

PEOPLE = {"id": (20, "bigint"), "born": (1082, "date")}


def test_a_refused_row_stops_its_sink_only(kafka: KafkaBroker, redis: str, unique: str, tmp_path: Path) -> None:
    sinks = sinks_section(tmp_path, "http://127.0.0.1:1", redis)
    config = write_config(tmp_path, kafka.bootstrap_servers, unique, sinks)
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("people", PEOPLE, ["id"], partitions=1)
    before = feed.transaction(("people", {"id": 1, "born": "2001-02-03"}))
    feed.progress()
    with SinkJob(config, "cache", "warehouse") as job:
        job.wait_applied(before, "cache", "warehouse")
        feed.transaction(("people", {"id": 4711, "born": "infinity"}))
        after = feed.transaction(("people", {"id": 2, "born": "2002-03-04"}))
        feed.progress()
        job.wait_applied(after, "cache")
        job.wait_said("sink stopped")
        (said,) = [line for line in job.said().splitlines() if "sink stopped" in line]
        for part in ("sink=warehouse", "public.people", "column born (date)", f"{unique}.public.people, partition 0"):
            assert part in said
        assert "infinity" not in said and "4711" not in said
        held = [row.row for row in stored_rows(job.config, "cache", feed.schemas["people"])]
        assert held == [
            {"id": 1, "born": "2001-02-03"},
            {"id": 2, "born": "2002-03-04"},
            {"id": 4711, "born": "infinity"},
        ]
        record = job.record("warehouse")
        assert record is not None and record.applied_lsn == before, "nothing after the row is called applied"

        # A second process for the same sink waits beside the first, and says so.
        with SinkJob(config, "cache") as second:
            second.wait_said("another process runs the sink")
            code, _ = second.terminate()
            assert code == 0

        code, _ = job.terminate()
        assert code == 1, "an operator must see that a sink is stopped"
        assert "Traceback" not in job.said()

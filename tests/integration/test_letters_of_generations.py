"""Dead letters end with what they are about: the version, the rows of a table, the generation, a table of the sink."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import deliver
from cdc.model.job_records import RebuildRecord
from tests.conformance.stores import url_of
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.waiting import eventually
from watershed.client.dead_letters import read_dead_letters

pytestmark = [pytest.mark.whole, pytest.mark.long]

COLUMNS: Final = {"id": (20, "bigint"), "name": (25, "text")}
TABLES: Final = ("people", "places")
TOO_LONG: Final = "much too long"
DEADLINE_S: Final = 120.0


@dataclass
class Rejecting:
    """A SQL sink whose names have three characters at most."""

    feed: Feed
    folder: Path
    section: dict[str, Any]
    kafka: KafkaBroker

    def config(self, **section: Any) -> Path:
        tables = [f"public.{table}" for table in TABLES]
        sinks = {"report": self.section | section}
        return write_config(self.folder, self.kafka.bootstrap_servers, self.feed.prefix, sinks, tables)

    def upsert(self, number: int, name: str, table: str = "people") -> int:
        self.feed.transaction((table, {"id": number, "name": name}))
        return self.feed.progress()

    def request(self, job: SinkJob, action: Literal["rebuild", "drop"]) -> None:
        """As `cdc rebuild`, which needs capture's state."""
        topic = f"{self.feed.prefix}.progress"
        wish = RebuildRecord(sink="report", request=secrets.token_hex(8), action=action, status="asked", asked_us=1)
        deliver(job.config.kafka, wish.to(topic))

        def is_done() -> bool:
            value = read_latest(job.config.kafka, topic)[RebuildRecord.key_of("report")]
            return RebuildRecord.decode(value, topic).status == "done"

        eventually(is_done, DEADLINE_S, f"the {action} is done")

    def letters(self, job: SinkJob) -> list[tuple[int | None, str, int]]:
        found = read_dead_letters(job.config, ["report"])
        return [(letter.generation, letter.row.table_name, letter.row.key["id"]) for letter in found]


@pytest.fixture
def rejecting(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Rejecting]:
    feed = Feed(kafka.bootstrap_servers, f"t{secrets.token_hex(5)}")
    for table in TABLES:
        feed.add_table(table, COLUMNS, ["id"])
    shapes = {f"public.{table}": {"types": {"name": "varchar(3)"}} for table in TABLES}
    with new_database(postgres) as target:
        yield Rejecting(feed, tmp_path, {"type": "sql", "url": url_of(target), "shapes": shapes}, kafka)


def test_letters_end_with_what_they_are_about(rejecting: Rejecting) -> None:
    for number in range(40):
        rejecting.upsert(number, TOO_LONG)
        lsn = rejecting.upsert(number, "ok")
    with SinkJob(rejecting.config(), "report", log_level="info") as job:
        job.wait_applied(lsn, "report", deadline_s=DEADLINE_S)
        for number in range(40, 120):  # corrected within a batch, now in the same piece, now in another
            rejecting.upsert(number, TOO_LONG)
            lsn = rejecting.upsert(number, "ok")
        job.wait_applied(lsn, "report")
        assert rejecting.letters(job) == []

        lsn = rejecting.upsert(7, TOO_LONG)
        assert job.wait_applied(lsn, "report")["report"].rejected == {"public.people": 1}
        rejecting.feed.begin()
        rejecting.feed.truncate("people")
        rejecting.feed.commit()
        job.wait_applied(rejecting.feed.progress(), "report")
        eventually(lambda: rejecting.letters(job) == [], 30, lambda: "letters are closed between two batches")

        rejecting.upsert(8, TOO_LONG)
        lsn = rejecting.upsert(9, TOO_LONG, "places")
        record = job.wait_applied(lsn, "report")["report"]
        assert record.rejected == {"public.people": 1, "public.places": 1}
        first = record.generation
        assert rejecting.letters(job) == [(first, "people", 8), (first, "places", 9)]
        rejecting.request(job, "rebuild")
        second = first + 1
        both = [(first, "people", 8), (first, "places", 9), (second, "people", 8), (second, "places", 9)]
        assert rejecting.letters(job) == both, "a rollback would need them"
        lsn = rejecting.upsert(8, "ok")
        assert job.wait_applied(lsn, "report")["report"].rejected == {"public.places": 1}
        assert rejecting.letters(job) == [*both[:2], both[3]], "the former generation still lacks the row"
        rejecting.request(job, "drop")
        eventually(
            lambda: rejecting.letters(job) == [(second, "places", 9)],
            DEADLINE_S,
            lambda: f"the dropped generation has no letters: {rejecting.letters(job)}",
        )
        assert job.terminate()[0] == 0

    with SinkJob(rejecting.config(exclude_tables=["public.places"]), "report", log_level="info") as job:
        lsn = rejecting.upsert(10, "ok")
        record = job.wait_applied(lsn, "report", deadline_s=DEADLINE_S)["report"]
        assert (record.rejected, rejecting.letters(job)) == ({}, [])
        assert job.terminate()[0] == 0

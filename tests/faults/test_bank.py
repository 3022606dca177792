"""Readers of a store that is written up to positions of the source see no transaction in part, under kill -9 of the
sinks' job and of capture. The long form is in bank_campaign."""

import secrets
from pathlib import Path

import pytest

from tests.conformance.stores import url_of
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.bank import SCHEMA, TABLES, Reads, await_equal, running, settings, sql_reader, transfers
from tests.support.captured import under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

pytestmark = pytest.mark.long


@pytest.mark.promise(2)
def test_no_reader_of_a_transactional_sql_store_sees_a_transfer_in_part(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    name, reads = f"t{secrets.token_hex(5)}", Reads()
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, tmp_path, SCHEMA, list(TABLES)) as bank,
    ):
        bank.settings = settings(tmp_path, url_of(target))
        bank.start().await_said("streaming")
        bank.await_caught_up()
        read = sql_reader(target)
        with SinkJob(bank.config(), "books") as job:
            job.wait_applied(bank.log_end(), "books")
            with transfers(bank, 1, reads), running({"reader": lambda: read(reads)}, reads, 0.01):
                eventually(lambda: len(reads.states) >= 4, 60.0, lambda: f"{len(reads.states)} states were seen")
                job.kill()
                bank.running().kill()
                bank.start()
                with SinkJob(bank.config(), "books") as again:
                    before = len(reads.states)
                    eventually(lambda: len(reads.states) >= before + 4, 60.0, "states after the kill")
                    again.kill()
        with SinkJob(bank.config(), "books"):
            await_equal(bank, read)
    assert reads.wrong == []

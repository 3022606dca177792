"""Events of both modes under concurrent writers and kill -9: the short form of outbox_campaign."""

from pathlib import Path

import pytest

from tests.checker.records import Record
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.outbox_workload import Writers, complaints, judge, with_outbox
from tests.support.topics import delete_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole


@pytest.mark.promise(1)
def test_every_committed_event_comes_once_in_order_over_kills(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> None:
    settings = {"capture": {"transaction_rows_max": 40}}
    with with_outbox(postgres, kafka, fresh_database, unique, tmp_path, settings) as captured:
        process = captured.start()
        process.await_said("streaming", 90.0)
        with Writers(fresh_database, seed=7) as writers:
            for _ in range(2):
                until = writers.committed + 60
                eventually(lambda until=until: writers.committed > until)  # type: ignore[misc]
                process.kill()
                process = captured.start()
        captured.await_caught_up()
        reported = judge(captured)
        assert reported.complaints == ()
        assert reported.events > 100
        captured.judge()
        delete_topic(kafka.bootstrap_servers, f"{unique}-thing")


def event(number: int, n: int, key: str = "1", offset: int = 0) -> Record:
    return Record("t", 0, offset, key.encode(), b'{"n":%d}' % n, (("id", b"e%d" % number),))


def test_the_judge_sees_what_is_lost_doubled_invented_or_out_of_order() -> None:
    journal = {"e1": ("1", 1), "e2": ("1", 2)}
    assert list(complaints(journal, [event(1, 1), event(2, 2)])) == []
    assert any("never came" in message for message in complaints(journal, [event(1, 1)]))
    assert any("twice" in message for message in complaints(journal, [event(1, 1), event(2, 2), event(2, 2)]))
    assert any("if it was" in message for message in complaints(journal, [event(1, 1), event(2, 2), event(3, 3)]))
    assert any("behind" in message for message in complaints(journal, [event(2, 2), event(1, 1)]))

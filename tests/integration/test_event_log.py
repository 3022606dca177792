"""An event log has each event of its topics once, whatever ends; a view over it is the plain fold of the events."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Final

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import ConfigError
from sinks.errors import RefusedError, SinkError
from tests.conftest import KafkaBroker
from tests.support.event_logs import PARTITIONS, Accounts
from tests.support.topics import admin_of, delete_topic, set_topics
from tests.support.views import killed
from tests.support.waiting import eventually
from watershed.cli.event_log import check_logs, chosen_logs, rebuild_log, remove_log
from watershed.status.view_facts import ViewFacts
from watershed.views.event_log import EventLogSupervisor, log_findings
from watershed.views.event_log_base import EventLogBase, EventLogFigures
from watershed.views.event_records import EventTopicReader
from watershed.views.maintainer import ViewMaintainer
from watershed.views.targets import open_base

pytestmark = pytest.mark.long

MOMENTS: Final = (
    *((EventLogBase, name) for name in ("create", "offsets", "begin", "load", "_insert", "_advance", "note_filled")),
    *((TopicReader, name) for name in ("assign", "arrivals")),
    *((EventTopicReader, name) for name in ("identities", "bounds")),
)
OF_THE_VIEW: Final = ((EventLogBase, "wait"), (ViewMaintainer, "_computed"), (ViewMaintainer, "_apply"))
LOST: Final = "DROP SCHEMA {schema} CASCADE"


@pytest.fixture
def accounts(
    kafka: KafkaBroker, fresh_database: str, unique: str, request: pytest.FixtureRequest
) -> Iterator[Accounts]:
    made = Accounts(kafka.bootstrap_servers, fresh_database, unique, seed=7, is_fold=getattr(request, "param", False))
    try:
        yield made
    finally:
        made.close()
        with suppress(KafkaException):
            delete_topic(kafka.bootstrap_servers, made.topic)


@pytest.mark.parametrize("accounts", [False, True], ids=["query", "fold"], indirect=True)
def test_each_event_is_in_the_log_once_wherever_the_job_is_killed(accounts: Accounts) -> None:
    chance = random.Random(3)
    for number in range(8):
        accounts.publish(6)
        with killed(chance, MOMENTS, 4):
            accounts.load()
        if number % 4 == 3:
            with killed(chance, OF_THE_VIEW, 3):
                accounts.keep()
    accounts.load()
    accounts.keep()
    assert len(accounts.events) > 100
    assert accounts.view() == accounts.plain_fold()
    assert accounts.rejected() == []
    shown = _counts(accounts)
    assert (shown.state, shown.behind, shown.rejected, shown.is_kept) == ("serving", 0, 0, False)


def test_a_base_that_is_lost_is_loaded_again_from_the_topic(accounts: Accounts) -> None:
    accounts.publish(4)
    accounts.load()
    accounts.keep()
    accounts.publish(4)
    accounts.query(LOST.format(schema=accounts.schema))
    with pytest.raises(SinkError, match="nothing has loaded the event log accounts yet"):
        accounts.keep()
    with accounts.loader() as (job, _):
        job.start()
    with pytest.raises(SinkError, match=r"event log accounts is \d+ records behind its topics"):
        accounts.keep()
    accounts.load()
    accounts.keep()
    assert accounts.view() == accounts.plain_fold()
    accounts.query(f"DROP TABLE {accounts.schema}.log_accounts")  # only a part, and the offsets are there still
    accounts.load()
    accounts.keep()
    assert accounts.view() == accounts.plain_fold()


def test_a_topic_that_was_created_again_stops_the_log_until_it_is_to_be_loaded_again(accounts: Accounts) -> None:
    accounts.publish(4)
    accounts.load()
    accounts.keep()
    before = accounts.view()
    delete_topic(accounts.servers, accounts.topic)
    with pytest.raises(SinkError, match="from which it holds events, does not exist"):
        accounts.load()
    accounts.create_topic()
    accounts.events.clear()
    accounts.publish(2)
    with pytest.raises(
        RefusedError, match=r"topic .* was deleted and created again; .*offset \d+ of partition"
    ) as message:
        accounts.load()
    assert "cdc view rebuild accounts" in message.value.hint
    with pytest.raises(RefusedError, match="was deleted and created again"):
        EventLogSupervisor(accounts.settings, "accounts").run(threading.Event())
    shown = _counts(accounts)
    assert (shown.state, shown.error, shown.next) == ("failed", message.value.message, message.value.hint)
    accounts.keep()
    assert accounts.view() == before
    _ask_rebuild(accounts)
    with accounts.loader() as (job, _):
        job.start()
    with pytest.raises(SinkError, match=r"event log accounts is \d+ records behind its topics"):
        accounts.keep()
    assert accounts.view() == before, "the log is empty, which no reader of the view sees"
    accounts.load()
    accounts.keep()
    assert accounts.view() == accounts.plain_fold()


def test_whoever_reads_a_log_that_is_to_be_loaded_again_is_not_kept_from_it(accounts: Accounts) -> None:
    """Its views lose their triggers with it, under a lock that no reader allows, such as the filling of a view."""
    accounts.publish(4)
    accounts.load()
    accounts.keep()
    _ask_rebuild(accounts)
    table = f"{accounts.schema}.log_accounts"
    triggers = f"SELECT count(*) FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname ~ '^watershed_'"
    with psycopg.connect(accounts.dsn, options="-c idle_in_transaction_session_timeout=15s") as reader:
        reader.execute(f"SELECT count(*) FROM {table}".encode())
        with pytest.raises(SinkError, match="event log accounts: it can't lock tables"), accounts.loader() as (job, _):
            job.start()
        assert accounts.query(triggers) == [(4,)]
        reader.commit()
    accounts.load()
    assert accounts.query(triggers) == [(0,)]
    accounts.keep()
    assert accounts.view() == accounts.plain_fold()


@pytest.mark.long
def test_a_topic_that_is_created_again_while_it_is_read_gives_no_record_to_the_log(accounts: Accounts) -> None:
    accounts.publish(3)
    accounts.load()
    with accounts.loader() as (job, _):
        job.start()
        delete_topic(accounts.servers, accounts.topic)
        accounts.create_topic()
        accounts.publish(20)  # more than the offsets that the log has
        with pytest.raises(RefusedError, match="was deleted and created again"):
            _until_error(job.step)


def test_events_that_were_deleted_before_they_were_loaded_are_an_error_with_their_offsets(accounts: Accounts) -> None:
    accounts.publish(3)
    accounts.load()
    kept = list(accounts.events)
    accounts.publish(8)
    ends = {partition: _end(accounts, partition) for partition in range(PARTITIONS)}
    admin = admin_of(accounts.servers)
    for future in admin.delete_records([TopicPartition(accounts.topic, *end) for end in ends.items()]).values():
        future.result(10)
    with pytest.raises(
        RefusedError, match=r"partition \d: the log has events up to offset \d+, but the topic begins at"
    ):
        accounts.load()
    accounts.events = kept
    accounts.publish(3)
    _ask_rebuild(accounts)
    accounts.load()
    accounts.keep()
    assert accounts.view() == accounts.plain_fold()


@pytest.mark.long
def test_partitions_that_are_added_are_read_from_their_first_record(accounts: Accounts) -> None:
    accounts.publish(2)
    accounts.load()
    admin = admin_of(accounts.servers)
    admin.create_partitions([NewPartitions(accounts.topic, PARTITIONS + 2)])[accounts.topic].result(10)
    topics = EventTopicReader(accounts.settings.kafka, [accounts.topic])
    eventually(lambda: topics.identities()[accounts.topic].partition_count == PARTITIONS + 2)
    producer = Producer({"bootstrap.servers": accounts.servers})
    producer.produce(accounts.topic, b"1", b"new", PARTITIONS + 1, headers=[("id", b"new"), ("kind", None)])
    producer.flush(30)
    accounts.load()
    found = accounts.query(f"SELECT id, partition, no, type FROM {accounts.schema}.log_accounts WHERE id = 'new'")
    assert found == [("new", PARTITIONS + 1, 0, None)]
    assert accounts.query(f"SELECT count(*) FROM {accounts.schema}.log_accounts") == [(len(accounts.events) + 1,)]


def test_records_that_the_log_cant_hold_are_kept_with_the_reason_and_it_goes_on(accounts: Accounts) -> None:
    producer = Producer({"bootstrap.servers": accounts.servers})
    accounts.send(producer, "a1", "1", "paid", b'{"amount": 1}')
    accounts.send(producer, "a1", "2", "paid", rb'{"amount": 1, "note": "\u0000"}')
    accounts.send(producer, "a1", "3", "paid", b"\xff")
    accounts.send(producer, "a1", "1", "paid", b'{"amount":   1}')  # the same event
    accounts.send(producer, "a1", "1", "paid", b'{"amount": 2}')  # another one
    accounts.send(producer, "a1", random.Random(1).randbytes(5_000).hex(), "paid", b'{"amount": 2}')
    producer.produce(accounts.topic, b"{}", b"a1")
    accounts.send(producer, "a1", "4", "closed", None)
    producer.flush(30)
    accounts.load()
    kept = accounts.query(f"SELECT id, type, payload FROM {accounts.schema}.log_accounts ORDER BY no")
    assert kept == [("1", "paid", {"amount": 1}), ("4", "closed", None)]
    reasons = [(reason, bytes(value)) for reason, value in accounts.rejected()]
    assert [value for _, value in reasons] == [
        *(rb'{"amount": 1, "note": "\u0000"}', b"\xff", b'{"amount": 2}', b'{"amount": 2}', b"{}")
    ]
    for (reason, _), part in zip(
        reasons,
        ("unsupported Unicode", "not UTF-8", "another event has the same id", "maximum size", "no id"),
        strict=True,
    ):
        assert part in reason
    shown = _counts(accounts)
    assert (shown.state, shown.rejected) == ("serving", 5)
    _ask_rebuild(accounts)
    accounts.load()
    assert len(accounts.rejected()) == 5


def test_a_check_names_what_would_keep_a_log_from_its_events(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [(one.level, one.message) for one in log_findings(accounts.settings, "accounts")] == [
        ("ok", f"topic {accounts.topic} is read")
    ]
    producer = Producer({"bootstrap.servers": accounts.servers})
    producer.produce(accounts.topic, b"{}", b"a1")
    producer.flush(30)
    assert not check_logs(accounts.settings, ["accounts"], as_json=True)
    assert json.loads(capsys.readouterr().out)["event_log"] == "accounts"
    (_, form) = log_findings(accounts.settings, "accounts")
    assert (form.level, "not an event in the form of the outbox: it has no id" in form.message) == ("warn", True)
    set_topics(accounts.servers, [accounts.topic], cleanup_policy="compact")
    assert check_logs(accounts.settings, ["accounts"], as_json=False)
    assert f"accounts: fail: topic {accounts.topic} has cleanup.policy=compact" in capsys.readouterr().out
    compacted = next(iter(log_findings(accounts.settings, "accounts")))
    assert (compacted.level, compacted.next) == ("fail", f"set cleanup.policy=delete on {accounts.topic}")
    with pytest.raises(RefusedError, match=r"has cleanup\.policy=compact"):
        accounts.load()


def test_a_log_is_removed_when_no_view_reads_it(accounts: Accounts, capsys: pytest.CaptureFixture[str]) -> None:
    accounts.publish(1)
    accounts.load()
    accounts.keep()
    with pytest.raises(SinkError, match="event log accounts: view states reads it"):
        remove_log(accounts.settings, "accounts", asks=False)
    with accounts.loader() as (_, base):
        with pytest.raises(SinkError, match="a process is loading it"):
            remove_log(accounts.settings, "accounts", asks=False)
        with pytest.raises(SinkError, match="views read it"):  # also one that the configuration has no more
            base.remove("accounts")
        with open_base(accounts.settings, "states") as of_view:
            of_view.remove("states")
    remove_log(accounts.settings, "accounts", asks=False)
    assert "accounts: removed" in capsys.readouterr().out
    assert accounts.query(f"SELECT to_regclass('{accounts.schema}.log_accounts')") == [(None,)]
    for own in ("log_offsets", "views"):
        assert accounts.query(f"SELECT count(*) FROM {accounts.schema}.{own}") == [(0,)]
    with pytest.raises(SinkError, match="event log accounts has never been loaded"):
        rebuild_log(accounts.settings, "accounts")


def test_names_are_those_of_views_and_logs(accounts: Accounts) -> None:
    assert chosen_logs(accounts.settings, None) == ["accounts"]
    assert chosen_logs(accounts.settings, ["states"]) == []
    with pytest.raises(ConfigError, match="no view 'nobody'") as message:
        chosen_logs(accounts.settings, ["nobody"])
    assert message.value.hint == "its views and logs: states, accounts"


def _ask_rebuild(accounts: Accounts) -> None:
    rebuild_log(accounts.settings, "accounts")


def _counts(accounts: Accounts) -> ViewFacts:
    with closing(EventLogFigures(accounts.settings, "accounts")) as figures:
        return figures.counts()


def _end(accounts: Accounts, partition: int) -> int:
    topics = EventTopicReader(accounts.settings.kafka, [accounts.topic])
    return topics.bounds(topics.identities())[accounts.topic, partition].end


def _until_error(step: Callable[[], object]) -> None:
    for _ in range(100):
        step()

"""A compacted topic as a view's target: its last record of each key is the query's row, wherever the job ends."""

import json
import multiprocessing
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from cdc.config.config_file import Config
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import open_reader
from cdc.model.errors import BrokerError, WatershedError
from cdc.model.events import pack_version
from sinks.errors import RefusedError, SinkError
from sinks.sql.sink import SqlSink
from tests.conformance.stores import url_of
from tests.conformance.tables import Table
from tests.conftest import KafkaBroker
from tests.support.topics import admin_of, create_topic, delete_topic
from tests.support.view_tables import CUSTOMERS, DOCUMENTS, LINES, ORDERS, SAVED_SEARCHES, SHOP, Query, recipes
from tests.support.views import Workload, killed, until_idle
from tests.support.waiting import eventually
from watershed.views.base import Base
from watershed.views.maintainer import ViewMaintainer, define
from watershed.views.supervisor import ViewSupervisor
from watershed.views.targets import open_target
from watershed.views.topic import Published
from watershed.views.topic_writer import ViewTopic

pytestmark = pytest.mark.long

TOTALS: Final = """
SELECT o.id, c.name, l.total::text AS total, l.lines
  FROM orders o LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (SELECT order_id, sum(price) AS total, count(*) AS lines FROM lines GROUP BY order_id) l
    ON l.order_id = o.id
 WHERE o.note::text IS DISTINCT FROM '{"a": 1}'
"""
PARTITIONS: Final = 3


class Pipeline:
    """A base that a sink keeps, and jobs of the view `totals`, whose target is a topic."""

    def __init__(
        self,
        kafka: KafkaBroker,
        dsn: str,
        prefix: str,
        tables: Sequence[Table] = SHOP,
        query: Query = Query(TOTALS, ["id"]),  # noqa: B008
    ) -> None:
        self.dsn, self.kafka = dsn, kafka
        self.topic = f"{prefix}.view.totals"
        self.text, self._key = query
        self._prefix, self._tables = prefix, tables
        self.base_sink = SqlSink.open(self.settings().sinks["copy"], prefix)  # type: ignore[arg-type]
        self.base_sink.begin_generation(1)
        for one in tables:
            self.base_sink.prepare(one.schema)

    def sections(self) -> dict[str, Any]:
        view = {"base": "copy", "sql": self.text, "key": self._key, "target": {"type": "topic"}, "keys_per_batch": 3}
        return {
            "source": {"dsn": self.dsn, "tables": [str(one.id) for one in self._tables]},
            "kafka": {"bootstrap_servers": self.kafka.bootstrap_servers},
            "topics": {"prefix": self._prefix, "partitions": PARTITIONS},
            "sinks": {"copy": {"type": "sql", "url": url_of(self.dsn)}},
            "views": {"totals": view},
        }

    def settings(self) -> Config:
        return Config.model_validate(self.sections())

    @contextmanager
    def job(self) -> Iterator[ViewMaintainer]:
        settings = self.settings()
        section = settings.views["totals"]
        with Base(settings.sinks["copy"], self._prefix) as base:  # type: ignore[arg-type]
            definition = define("totals", section, base)
            with closing(
                ViewMaintainer(definition, base, partial(open_target, settings, "totals"), do_nothing)
            ) as made:
                yield made

    def run(self) -> None:
        """One job, until there is nothing to do."""
        with self.job() as job:
            job.start()
            until_idle(job)

    def exists(self) -> bool:
        return bool(TopicAdmin(self.settings().kafka).describe([self.topic]))

    @property
    def busy(self) -> str:
        """A query for the number of changes and keys that wait."""
        schema = f"watershed_views_{self._prefix}"
        return f"SELECT (SELECT count(*) FROM {schema}.changes) + (SELECT count(*) FROM {schema}.keys)"

    def records(self) -> list[tuple[int, dict[str, Any], Any, int]]:
        """Partition, key, row and version of every record that a reader of committed records gets."""
        found = []
        with open_reader(self.settings().kafka) as reader:
            for message in chain.from_iterable(reader.read(self.topic, number) for number in range(PARTITIONS)):
                headers: dict[str, Any] = dict(message.headers() or [])
                assert headers["view"] == f"{self._prefix}.totals".encode()
                value, key = message.value(), message.key()
                row = None if value is None else json.loads(value)
                found.append((message.partition() or 0, json.loads(key or b""), row, int(headers["version"])))
        return found

    def held(self) -> dict[int, dict[str, Any]]:
        """Returns the content of a consumer that keeps each key's last record. A key's version never goes back."""
        rows: dict[int, dict[str, Any]] = {}
        versions: dict[int, int] = {}
        for _, key, row, version in self.records():
            assert list(key) == ["id"]
            assert version >= versions.get(key["id"], 0)
            versions[key["id"]] = version
            if row is None:
                rows.pop(key["id"], None)
            else:
                rows[key["id"]] = row
        return rows

    def wanted(self) -> dict[int, dict[str, Any]]:
        rows = self.query(f"SELECT row_to_json(v)::text FROM ({self.text}) v")
        return {row["id"]: row for row in (json.loads(text) for (text,) in rows)}

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def put(self, version: int, **names: str) -> None:
        """Customers 1 and 2 with an order each, of the same number."""
        changes = [
            CUSTOMERS.upsert(pack_version(1, version), id=int(key[1:]), name=name, region=None)
            for key, name in names.items()
        ]
        changes += [
            ORDERS.upsert(
                pack_version(1, version), id=int(key[1:]), customer_id=int(key[1:]), placed_at=None, note=None
            )
            for key in names
        ]
        self.base_sink.apply(changes)


@pytest.fixture
def pipeline(kafka: KafkaBroker, fresh_database: str, unique: str) -> Iterator[Pipeline]:
    made = Pipeline(kafka, fresh_database, unique)
    with closing(made.base_sink):
        yield made
    with suppress(Exception):
        delete_topic(kafka.bootstrap_servers, made.topic)


def test_a_consumer_of_alerts_sees_matches_that_start_change_and_stop(
    kafka: KafkaBroker, fresh_database: str, unique: str
) -> None:
    """Documents change, and a saved query is added, changed and removed, while the job runs."""
    alerts = Pipeline(kafka, fresh_database, unique, (SAVED_SEARCHES, DOCUMENTS), recipes()["alerts"])
    versions, seen = count(1), 0

    def document(number: int, price: str, title: str = "Red bike") -> Any:
        return DOCUMENTS.upsert(
            pack_version(1, next(versions)), id=number, category="bikes", title=title, price=price, attributes="{}"
        )

    def saved(price_max: str, number: int = 1) -> Any:
        return SAVED_SEARCHES.upsert(
            pack_version(1, next(versions)), id=number, category="bikes", price_max=price_max, words="red"
        )

    def alerted(*changes: Any) -> list[tuple[int, int, str | None]]:
        """Search, document and price of each new record, when the changes were committed one by one; a tombstone has no
        price."""
        nonlocal seen
        for change in changes:
            alerts.base_sink.apply([change])
        until_idle(job)
        found = [(version, key, row) for _, key, row, version in alerts.records()]
        new = sorted(found, key=lambda one: (one[0], str(one[1])))[seen:]
        seen = len(found)
        return [(key["search"], key["document"], row and row["price"]) for _, key, row in new]

    with closing(alerts.base_sink), alerts.job() as job:
        job.start()
        assert alerted(document(1, "280"), document(2, "320"), document(3, "1", "Blue bike")) == []
        assert alerted(saved("300")) == [(1, 1, "280")], "a query is added: what matches it starts to"
        assert alerted(document(1, "290")) == [(1, 1, "290")], "it matches still, with another row"
        assert alerted(document(2, "300")) == [(1, 2, "300")]
        assert alerted(saved("295")) == [(1, 2, None)], "the query is changed"
        assert alerted(saved("296")) == [], "what a reader sees is the same"
        assert alerted(document(2, "200"), document(2, "320")) == [], "a match that is shorter than a step"
        assert alerted(saved("290", 2)) == [(2, 1, "290")]
        assert alerted(SAVED_SEARCHES.delete(pack_version(1, next(versions)), id=1)) == [(1, 1, None)]
        assert alerted(DOCUMENTS.delete(pack_version(1, next(versions)), id=1)) == [(2, 1, None)]
    delete_topic(kafka.bootstrap_servers, alerts.topic)


# The moments around a write: its keys are noted; it is committed; the base knows that it is.
MOMENTS: Final = ((Published, "record_pending"), (ViewTopic, "write"), (Published, "confirm"), (Base, "written"))


@pytest.mark.parametrize("seed", range(2))
def test_the_last_record_of_each_key_is_the_querys_row(seed: int, pipeline: Pipeline) -> None:
    workload, chance = Workload(pipeline.base_sink, SHOP, seed), random.Random(seed)
    for _ in range(6):
        with killed(chance, MOMENTS, calls_max=4), pipeline.job() as job:
            job.start()
            for _ in range(6):
                workload.step()
                if chance.random() < 0.15:
                    workload.truncate()
                if chance.random() < 0.7:
                    job.step()
            until_idle(job)
    workload.fill()
    pipeline.run()
    assert pipeline.held() == pipeline.wanted() != {}


def keep(sections: dict[str, Any]) -> None:
    """Keeps the view, in a process of its own."""
    settings = Config.model_validate(sections)
    open_base = partial(Base, settings.sinks["copy"], settings.topics.prefix)  # type: ignore[arg-type]
    open_there = partial(open_target, settings, "totals")
    ViewSupervisor("totals", settings.views["totals"], open_base, open_there, do_nothing).run(threading.Event())


@pytest.mark.long  # test_the_last_record… ends jobs inside of one process
def test_processes_that_are_killed_leave_nothing_out(pipeline: Pipeline) -> None:
    workload = Workload(pipeline.base_sink, SHOP, 7)
    spawning = multiprocessing.get_context("spawn")

    def is_busy() -> bool:
        workload.step()
        return pipeline.query(pipeline.busy) != [(0,)]

    def has_written(before: int) -> bool:
        workload.step()
        return pipeline.exists() and len(pipeline.records()) > before

    before = 0
    for is_last in (False, False, True):
        process = spawning.Process(target=keep, args=(pipeline.sections(),), daemon=True)
        process.start()
        try:
            eventually(partial(has_written, before))
            before = len(pipeline.records())
            if not is_last:
                eventually(is_busy)
            else:
                eventually(lambda: pipeline.held() == pipeline.wanted() != {})
        finally:
            process.kill()
            process.join()


def test_rows_that_did_not_change_are_not_written_again(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a", c2="b")
    pipeline.run()
    before = pipeline.records()
    assert len(before) == 2
    with pipeline.job() as job:
        job.start()
        pipeline.base_sink.apply([LINES.upsert(pack_version(1, 2), order_id=1, no=1, sku="s", price="1")])
        until_idle(job)
        assert len(pipeline.records()) == 3
        pipeline.base_sink.apply([CUSTOMERS.upsert(pack_version(1, 3), id=2, name="b", region="south")])
        until_idle(job)
    with pipeline.job() as job:
        pipeline.query("UPDATE watershed_views_" + pipeline.topic.split(".")[0] + ".views SET state = 'rebuild'")
        job.start()
    assert len(pipeline.records()) == 3
    assert pipeline.held() == pipeline.wanted()


def test_a_rebuild_deletes_keys_that_the_view_has_no_more(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a", c2="b")
    pipeline.run()
    pipeline.text = TOTALS + " AND o.id <> 2"
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()
    assert [row for _, key, row, _ in pipeline.records() if key == {"id": 2}][-1] is None


def test_a_base_that_was_lost_is_filled_into_the_topic_that_is_there(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a", c2="b")
    pipeline.run()
    pipeline.query(f"DROP SCHEMA watershed_views_{pipeline.topic.split('.')[0]} CASCADE")
    pipeline.base_sink.apply([ORDERS.delete(pack_version(1, 2), id=2)])
    pipeline.put(3, c1="changed")
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()
    assert list(pipeline.held()) == [1]


def test_a_topic_that_was_deleted_is_created_and_filled(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a", c2="b")
    pipeline.run()
    delete_topic(pipeline.kafka.bootstrap_servers, pipeline.topic)
    pipeline.run()
    assert pipeline.held() == pipeline.wanted() != {}


def test_a_writer_whose_lock_is_another_processes_writes_nothing(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="old")
    with pipeline.job() as former:
        former.start()
        pipeline.put(2, c1="newer")
        lost = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        write = ViewTopic.write
        between: list[bool] = []

        def frozen(topic: ViewTopic, records: Any) -> None:
            """The former job is frozen between its read and its write, and loses its lock meanwhile."""
            if not between:
                between.append(True)
                pipeline.query(lost)
                pipeline.put(3, c1="newest")
                pipeline.run()
            write(topic, records)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ViewTopic, "write", frozen)
            with pytest.raises(SinkError, match="another process has become its writer"):
                former.step()
    assert pipeline.held()[1]["name"] == "newest"
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()


def test_a_record_that_the_topic_does_not_take_is_rejected_by_its_key(pipeline: Pipeline) -> None:
    create_topic(pipeline.kafka.bootstrap_servers, pipeline.topic, partitions=PARTITIONS, max_message_bytes="20000")
    pipeline.put(1, c1="a", c2="b")
    pipeline.run()
    pipeline.put(2, c1="x" * 30_000)
    pipeline.run()
    assert list(pipeline.held()) == [2]
    ((key, reason),) = pipeline.query(
        f"SELECT key, reason FROM watershed_views_{pipeline.topic.split('.')[0]}.rejected"
    )
    assert key == ["1"]
    assert "but the topic accepts" in reason
    pipeline.put(3, c1="short")
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()


@pytest.mark.parametrize(
    ("policy", "partitions", "message"),
    [("delete", PARTITIONS, "cleanup.policy=delete"), ("compact", PARTITIONS, "a record that does not belong to view")],
)
def test_a_topic_of_others_is_refused(policy: str, partitions: int, message: str, pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a")
    create_topic(pipeline.kafka.bootstrap_servers, pipeline.topic, policy, partitions)
    producer = Producer({"bootstrap.servers": pipeline.kafka.bootstrap_servers})
    producer.produce(pipeline.topic, b"theirs", b"key")
    assert producer.flush(10) == 0
    with pytest.raises((BrokerError, RefusedError), match=message):
        pipeline.run()


def test_a_topic_with_other_partitions_is_refused(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a")
    pipeline.run()
    admin = admin_of(pipeline.kafka.bootstrap_servers)
    admin.create_partitions([NewPartitions(pipeline.topic, PARTITIONS + 1)])[pipeline.topic].result(10)
    with pytest.raises(RefusedError, match=f"{PARTITIONS + 1} partitions now, but had {PARTITIONS}"):
        _run_until_seen(pipeline)


def _run_until_seen(pipeline: Pipeline) -> None:
    admin = TopicAdmin(pipeline.settings().kafka)
    eventually(lambda: admin.describe([pipeline.topic])[pipeline.topic].partition_count == PARTITIONS + 1)
    pipeline.run()


def test_brokers_that_are_away_are_named(pipeline: Pipeline) -> None:
    pipeline.put(1, c1="a")
    settings = pipeline.settings()
    pipeline.kafka = replace(pipeline.kafka, bootstrap_servers="127.0.0.1:1")
    assert pipeline.settings().kafka != settings.kafka
    with pytest.raises(WatershedError, match="Kafka"):
        pipeline.run()

"""Events on real servers, beside the changes of tables in one pipeline."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaException
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from cdc.config.settings import SourceConfig
from tests.checker.records import Record, parse, read_topics
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.topics import delete_topic
from watershed.client.outbox import Outbox
from watershed.client.outbox_migrations import Names, migrate
from watershed.devstack.postgres import is_installed

ORDERS, OUTBOX = "public.orders", "public.outbox"
TABLES: LiteralString = """
CREATE TABLE orders (id int PRIMARY KEY, total numeric);
CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
                     aggregateid text NOT NULL, type text NOT NULL, payload jsonb, part int,
                     created_at timestamptz DEFAULT now());
"""


@pytest.fixture
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with with_outbox(postgres, kafka, fresh_database, unique, tmp_path) as made:
        yield made


@pytest.fixture(params=["16", *(["15"] if is_installed(15) else [])])
def older_shop(request: pytest.FixtureRequest, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Captured]:
    """The same on another PostgreSQL."""
    server: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    with new_database(server) as dsn, with_outbox(server, kafka, dsn, unique, tmp_path) as made:
        yield made


@contextmanager
def with_outbox(server: PostgresServer, kafka: KafkaBroker, dsn: str, name: str, folder: Path) -> Iterator[Captured]:
    """Orders that are captured, and an outbox whose topics begin with a name of their own."""
    with under_capture(server, kafka, dsn, name, folder, TABLES, [ORDERS]) as made:
        outbox = {
            "table": OUTBOX,
            "route.topic.replacement": f"{name}-events.${{routedByValue}}",
            "table.fields.additional.placement": "type:header:eventType,part:partition",
        }
        route = {"route.topic.replacement": outbox["route.topic.replacement"]}
        messages = {**route, "table.fields.additional.placement": "type:header:eventType"}
        migrate(SourceConfig(dsn=SecretStr(dsn), tables=(ORDERS,)), Names())
        made.settings = {"outbox": {"tables": [outbox], "messages": messages}}
        try:
            yield made
        finally:
            for topic in ("order", "customer"):
                with suppress(KafkaException):
                    delete_topic(kafka.bootstrap_servers, f"{name}-events.{topic}")


def publish(shop: Captured, order: int, event: str, aggregate: str = "order", part: int | None = None) -> None:
    shop.query(
        "WITH o AS (INSERT INTO orders VALUES (%s, 12.50) ON CONFLICT (id) DO UPDATE SET total = 13 RETURNING id)"
        " INSERT INTO outbox (aggregatetype, aggregateid, type, payload, part)"
        " SELECT %s, id, %s, jsonb_build_object('order', id), %s::int FROM o",
        order,
        aggregate,
        event,
        part,
    )


def events(shop: Captured, topic: str) -> list[Record]:
    return read_topics(shop.bootstrap_servers, [f"{shop.name}-events.{topic}"])[0]


def key_and_type(record: Record) -> tuple[bytes, str]:
    return record.key, dict(record.headers)["eventType"].decode()


def say(connection: psycopg.Connection, order: int, event: str) -> None:
    """Without a table."""
    connection.execute(
        "SELECT cdc.publish('order', %s, %s, jsonb_build_object('order', %s::int))", (str(order), event, order)
    )


def undone_and_done(shop: Captured) -> list[tuple[bytes, str]]:
    """Events of both modes, rolled back, undone to a savepoint, committed, and deleted at once; which are to come."""
    with shop.connect() as connection:
        connection.execute("BEGIN; INSERT INTO orders VALUES (100, 1)")
        connection.execute("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', 'x', 'RolledBack')")
        say(connection, 100, "RolledBack")
        connection.execute("ROLLBACK")
        connection.execute("BEGIN; SAVEPOINT s")
        connection.execute("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', 'y', 'RolledBack')")
        say(connection, 101, "RolledBack")
        connection.execute("ROLLBACK TO s; INSERT INTO orders VALUES (101, 1)")
        say(connection, 101, "Said")
        connection.execute("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', '101', 'Deleted')")
        connection.execute("DELETE FROM outbox WHERE aggregateid = '101'; COMMIT")
    return [(b"101", "Said"), (b"101", "Deleted")]


def by_sqlalchemy(shop: Captured) -> list[str]:
    """Events of an application's session, in both modes; which of them are to come."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop.dsn), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        message, kept = Outbox(session), Outbox(session, schema="public", table="outbox")
        deleted = Outbox(session, schema="public", table="outbox", keeps_rows=False)
        message.publish("order", "50", "First", {"total": "12.50"}, {"trace": "t"})
        with session.begin_nested() as savepoint:
            message.publish("order", "50", "RolledBack", None)
            kept.publish("order", "50", "RolledBack", None)
            savepoint.rollback()
        event = uuid4()
        assert kept.publish("order", "50", "Second", None, id=event) == event
        deleted.publish("order", "50", "Third", ["x"])
        with pytest.raises(ValueError, match="no headers"):
            kept.publish("order", "50", "RolledBack", None, {"a": "b"})
    with Session(engine) as session:
        Outbox(session).publish("order", "50", "RolledBack", None)
        session.rollback()
    assert len(shop.query("SELECT id FROM outbox WHERE aggregateid = '50'")) == 1
    return ["First", "Second", "Third"]


@pytest.mark.promise(1)
def test_events_and_rows_are_published_once_in_commit_order_over_a_kill(shop: Captured) -> None:
    shop.query("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', 'before', 'capture')")
    capture = shop.start()
    shop.await_caught_up()
    pruned = run(["outbox", "prune", "--config", str(shop.config())], deadline_s=60)
    assert f"events of {OUTBOX} that committed before" in pruned.stderr, "this row is not published"
    assert shop.query("SELECT aggregateid FROM outbox") == [("before",)]
    assert capture.terminate() == 0
    wanted = undone_and_done(shop)
    for number in range(8):
        publish(shop, number % 3, f"E{number}")
        wanted.append((b"%d" % (number % 3), f"E{number}"))
        with shop.connect() as connection:
            say(connection, number % 3, f"Said{number}")
        wanted.append((b"%d" % (number % 3), f"Said{number}"))
        if number == 4:
            shop.query("UPDATE outbox SET payload = '{}'")
            shop.query("DELETE FROM outbox")
    wanted += [(b"50", event) for event in by_sqlalchemy(shop)]
    assert shop.start(failpoint="kafka.before-commit:1").await_end(60) == -9
    assert shop.start(failpoint="kafka.after-commit:1").await_end(60) == -9
    shop.start()
    shop.await_caught_up()
    came = [key_and_type(record) for record in events(shop, "order")]
    for key in {key for key, _ in wanted}:
        assert [event for of, event in came if of == key] == [event for of, event in wanted if of == key]
    assert len(came) == len(wanted)
    assert shop.records(OUTBOX) == []
    shop.judge()  # of the rows: nothing is missing, doubled or out of order between the events

    publish(shop, 7, "New", aggregate="customer")  # a topic that did not exist
    publish(shop, 8, "Nowhere", aggregate="a b")
    publish(shop, 9, "Elsewhere", part=1000)
    publish(shop, 9, "Placed", part=2)
    shop.await_caught_up()
    assert [key_and_type(record) for record in events(shop, "customer")] == [(b"7", "New")]
    placed = next(record for record in events(shop, "order") if key_and_type(record)[1] == "Placed")
    assert (placed.partition, json.loads(placed.value or b"")) == (2, {"order": 9})
    dead = [parse(record.value or b"") for record in shop.records(OUTBOX)]
    assert [letter["event"]["type"] for letter in dead] == ["Nowhere", "Elsewhere"]
    assert "no partition 1000" in dead[1]["reason"]
    assert set(shop.snapshots()) == {ORDERS}
    forge(shop)
    shop.query("SELECT cdc.publish('a b', '1', 'Nowhere')")
    shop.await_caught_up()
    letters = [parse(record.value or b"") for record in shop.records("outbox_dead_letters")]  # of several partitions
    forged, nowhere = sorted(letters, key=lambda letter: "topic's name" in letter["reason"])
    assert "was not written by the function" in forged["reason"]
    assert nowhere["event"]["aggregatetype"] == "a b"
    shop.judge()

    left = len(shop.query("SELECT id FROM outbox"))
    assert left > 0
    nobody_wants_it = "2100-01-01T00:00:00Z"  # the row from before capture
    said = shop.cdc("outbox", "republish", "--since", nobody_wants_it)
    assert said == f"{OUTBOX}: 0 rows are published again\n"
    assert shop.cdc("outbox", "prune") == f"{OUTBOX}: {left} rows deleted\n"
    assert shop.query("SELECT id FROM outbox") == []
    shop.await_caught_up()
    assert len(events(shop, "order")) == len(wanted) + 1


@pytest.mark.promise(1)
def test_other_versions_of_postgresql_publish_the_same(older_shop: Captured) -> None:
    capture = older_shop.start()
    older_shop.await_caught_up()
    assert capture.terminate() == 0
    wanted = undone_and_done(older_shop)
    publish(older_shop, 1, "Placed")
    wanted += [(b"1", "Placed"), *((b"50", event) for event in by_sqlalchemy(older_shop))]
    forge(older_shop)
    assert older_shop.start(failpoint="kafka.before-commit:1").await_end(60) == -9
    older_shop.start()
    older_shop.await_caught_up()
    came = [key_and_type(record) for record in events(older_shop, "order")]
    assert sorted(came, key=lambda event: event[0]) == sorted(wanted, key=lambda event: event[0])
    (forged,) = (parse(record.value or b"") for record in older_shop.records("outbox_dead_letters"))
    assert "was not written by the function" in forged["reason"]
    older_shop.judge()


def forge(shop: Captured) -> None:
    """A role that may connect, and nothing else: it is refused by grant, and its own message by its seal."""
    content = b"w1" + bytes(40) + b'{"id":"i","aggregatetype":"order","aggregateid":"1","type":"T","payload":null}'
    role = sql.Identifier(f"{shop.name}_guest")
    shop.query(sql.SQL("CREATE ROLE {}").format(role))
    try:
        with psycopg.connect(shop.superuser_dsn, autocommit=True) as guest:
            guest.execute(sql.SQL("SET ROLE {}").format(role))
            for statement in ("SELECT cdc.publish('order', '1', 'Forged')", "SELECT * FROM cdc.outbox_key"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    guest.execute(statement)
            guest.execute("SELECT pg_logical_emit_message(true, 'watershed.outbox', %s::bytea)", (content,))
    finally:
        shop.query(sql.SQL("DROP ROLE {}").format(role))


def test_what_can_not_be_published_or_checked_is_refused_where_it_is_said(shop: Captured) -> None:
    for statement, error in (
        ("SELECT cdc.publish('order', NULL, 'T')", psycopg.errors.NullValueNotAllowed),
        ("SELECT cdc.publish('', '1', 'T')", psycopg.errors.NullValueNotAllowed),
        ("SELECT cdc.publish('order', '1', 'T', NULL, '{\"a\": 1}')", psycopg.errors.InvalidParameterValue),
    ):
        with pytest.raises(error):
            shop.query(statement)
    shop.query("DROP TABLE cdc.outbox_key")
    refused = shop.run_once("check")
    assert refused.returncode == 1
    assert "there is no function cdc.publish" in refused.stderr
    assert "next: cdc outbox migrate" in refused.stderr

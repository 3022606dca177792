"""The outbox as docs/how-to/events.md shows it: its examples, who may publish, upkeep, and what a gap loses."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Message
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from cdc.config.config_file import load_config
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, format_lsn
from cdc.postgres.connection import connect
from cdc.postgres.seal_key import read_seal_key
from tests.checker.records import Record, parse, read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.forked import run, start
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import eventually
from watershed.client.outbox import Outbox

pytestmark = pytest.mark.long

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/events.md"
ORDERS, OUTBOX = "public.orders", "cdc.outbox"
SCHEMA: LiteralString = "CREATE TABLE orders (id int PRIMARY KEY, total numeric)"
CONTRACT: Final = {"type": "object", "required": ["total"], "properties": {"total": {"type": "string"}}}


def examples(language: str) -> list[str]:
    """The page's blocks of code in this language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Orders, and an outbox as the page configures it, but that its topics begin with a name of their own."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, [ORDERS]) as made:
        (example,) = examples("yml")
        outbox: dict[str, Any] = yaml.safe_load(example)["outbox"]
        route = {"route.topic.replacement": f"{unique}-events.${{routedByValue}}"}
        for section in (*outbox["tables"], outbox["messages"]):
            section |= route
        contract = tmp_path / "order-placed.json"
        contract.write_text(json.dumps(CONTRACT))
        outbox["contracts"] = dict.fromkeys(outbox["contracts"], str(contract))
        made.settings = {"outbox": outbox}
        assert "exist in their newest version" in made.cdc("outbox", "migrate")
        try:
            yield made
        finally:
            made.end()
            with suppress(KafkaException):
                delete_topic(kafka.bootstrap_servers, f"{unique}-events.order")


class ReadEnoughError(Exception):
    pass


def consumed(shop: Captured, group: str, count: int) -> list[Message]:
    """What the page's consumer acts upon, until so many events have come; the last one's effect is rolled back."""
    (code,) = (code for code in examples("python") if "Consumer(" in code)
    code = code.replace("outbox.event.order", f"{shop.name}-events.order").replace("billing", group)
    came: list[Message] = []

    def act_on(_connection: psycopg.Connection, message: Message) -> None:
        came.append(message)
        if len(came) == count:
            raise ReadEnoughError

    names: dict[str, Any] = {"psycopg": psycopg, "Consumer": Consumer, "act_on": act_on, "dsn": shop.dsn}
    names["servers"] = shop.bootstrap_servers
    try:
        with pytest.raises(ReadEnoughError):
            exec(code, names)  # noqa: S102 - ours
    finally:
        names["consumer"].close()
        names["connection"].close()
    return came


def events(shop: Captured, topic: str = "order") -> list[Record]:
    return read_topics(shop.bootstrap_servers, [f"{shop.name}-events.{topic}"])[0]


def ids(records: Sequence[Record]) -> list[str]:
    return [dict(record.headers)["id"].decode() for record in records]


def test_the_readmes_examples_run_and_upkeep_leaves_what_is_young(shop: Captured) -> None:
    shop.start()
    shop.await_caught_up()
    with shop.connect() as connection:
        for example in examples("sql"):
            connection.execute(example.encode())
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shop.dsn), poolclass=NullPool)
    names = {"psycopg": psycopg, "Jsonb": Jsonb, "dsn": shop.dsn, "engine": engine}
    for example in examples("python"):
        if "Consumer(" not in example:
            exec(example, names | {"Session": Session, "text": text, "Outbox": Outbox})  # noqa: S102 - ours
    came = consumed(shop, f"{shop.name}-first", 6)
    assert {message.key() for message in came} == {b"7"}
    assert [message.value() for message in came] == [b'{"total": "12.50"}'] * 3 + [b'{"total": "13.00"}', None, None]
    again = consumed(shop, f"{shop.name}-again", 1)
    assert [message.offset() for message in again] == [came[-1].offset()], "it has seen the others"
    assert shop.query("SELECT id, total FROM orders") == [(7, 13)]
    shop.judge()
    prune(shop)


def prune(shop: Captured) -> None:
    """What is older than the page's retention; once, and again and again."""
    age = "UPDATE cdc.outbox SET created_at = now() - interval '2 days' WHERE type = %s"
    kept = "SELECT type FROM cdc.outbox"
    shop.query(age, "OrderPlaced")
    assert shop.cdc("outbox", "prune") == f"{OUTBOX}: 1 rows deleted\n"
    assert shop.query(kept) == [("OrderShipped",)]
    shop.running().kill()
    young = "INSERT INTO cdc.outbox (aggregatetype, aggregateid, type) VALUES ('order', '8', 'OrderShipped')"
    log = shop.folder / "prune.log"
    with log.open("wb") as output:
        words = ["outbox", "prune", "--every", "0.1", "--timeout", "0.2", "--config", str(shop.config())]
        process = start(words, output, output)
        try:
            shop.query(age, "OrderShipped")
            eventually(lambda: b"not pruned: capture has not confirmed" in log.read_bytes(), 30.0)
            shop.query(young)
            assert len(shop.query(kept)) == 2, "what may not be published stays"
            shop.start()
            eventually(lambda: len(shop.query(kept)) == 1, 60.0, "what is old is deleted")
            assert process.poll() is None
            assert shop.query(kept) == [("OrderShipped",)]
        finally:
            process.kill()
            process.wait()
    refused = run(["outbox", "prune", "--table", "public.orders", "--config", str(shop.config())], deadline_s=60)
    assert refused.returncode == 2
    assert "table public.orders is not in outbox.tables" in refused.stderr


def test_only_those_who_are_named_may_publish_and_all_can_be_taken_back(shop: Captured) -> None:
    app, capture = f"{shop.name}_app", f"{shop.name}_capture"
    for role in (app, capture):
        shop.query(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    where = ("--schema", "team's", "--table", "events")
    try:
        shop.cdc("outbox", "migrate", *where, "--grant", app, "--capture", capture)
        function = TableId("team's", "publish")
        with connect(load_config(shop.config()).source, application="test") as source:
            read_seal_key(source, function)
        row = """INSERT INTO "team's".events (aggregatetype, aggregateid, type) VALUES ('order', '1', 'T')"""
        message = """SELECT "team's".publish('order', '1', 'T')"""
        key, rows = """SELECT secret FROM "team's".outbox_key""", """DELETE FROM "team's".events"""
        with psycopg.connect(shop.superuser_dsn, autocommit=True) as connection:
            for role, may, may_not in ((app, (row, message), (key, rows)), (capture, (key, rows), (row, message))):
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
                for statement in may:
                    connection.execute(statement.encode())
                for statement in may_not:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(statement.encode())
                connection.execute("RESET ROLE")
        there = "SELECT to_regclass('\"team''s\".events')::text, to_regproc('\"team''s\".publish')::text"
        assert None not in shop.query(there)[0]
        assert "publish() was removed" in shop.cdc("outbox", "migrate", *where, "--downgrade", "0001")
        assert shop.query(there) == [('"team\'s".events', None)]
        shop.cdc("outbox", "migrate", *where)
        shop.cdc("outbox", "migrate", *where, "--downgrade", "base")
        assert shop.query(there) == [(None, None)]
    finally:
        for role in (app, capture):
            shop.query(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            shop.query(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def checked(shop: Captured) -> str:
    return shop.cdc("check", "--json")


def write(shop: Captured, kind: str, aggregate: str = "order", size: int = 0) -> None:
    """A row and a message."""
    row = "INSERT INTO cdc.outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, '1', %s, %s::jsonb)"
    for name, statement in (("Row", row), ("Message", "SELECT cdc.publish(%s, '1', %s, %s::jsonb)")):
        payload = json.dumps({"total": "1", "kind": f"{kind}{name}", "text": "x" * size})
        shop.query(statement, aggregate, f"{kind}{name}", payload)


def kind_of(record: Record) -> str:
    return str(json.loads(record.value or b"")["kind"])


@pytest.mark.promise(4)
def test_what_a_gap_loses_is_told_and_rows_that_stand_are_published_again(shop: Captured) -> None:
    capture = shop.start()
    shop.await_caught_up()
    write(shop, "Before")
    too_large_for_its_topic(shop)
    shop.await_caught_up()
    before = events(shop)
    assert len(before) == 2
    assert json.loads(checked(shop))["lost_events"] == []
    capture.kill()
    (*_, position) = (parse(r.value or b"") for r in shop.records("state") if r.key == b"position")
    begin = format_lsn(Lsn(position["resume_lsn"]))
    write(shop, "Lost")
    shop.drop_slot()
    capture = shop.start(failpoint="bootstrap.before-commit:1")
    capture.await_said(f"events that committed from {begin} on are not published by healing")
    shop.signal("heal")
    assert capture.await_end(60) == -9
    capture = shop.start()  # it goes on healing, and knows what is lost
    shop.await_caught_up()
    write(shop, "After")
    shop.await_caught_up()
    assert ids(events(shop))[:2] == ids(before) and len(events(shop)) == 4
    (reported,) = json.loads(checked(shop))["lost_events"]
    assert (reported["epoch"], reported["from_lsn"]) == (3, position["resume_lsn"])
    assert reported["from_lsn"] < reported["to_lsn"] < shop.log_end()
    message = shop.run_once("check").stdout
    assert f"epoch 3: events that committed between {begin} and" in message
    republish(shop, message, before)


def republish(shop: Captured, message: str, before: Sequence[Record]) -> None:
    (since,) = re.findall(r", from (\S+) on may not be published", message)
    progress = shop.query(
        "SELECT aggregatetype, type, id::text, created_at >= %s FROM cdc.outbox ORDER BY created_at", since
    )
    again = [row for row in progress if row[3]]
    assert {"LostRow", "AfterRow"} <= {kind for _, kind, _, _ in again}
    assert shop.cdc("outbox", "republish", "--since", since) == f"{OUTBOX}: {len(again)} rows are published again\n"
    shop.await_caught_up()
    came = ids(events(shop))
    assert came[:2] == ids(before)
    assert came[4:] == [identity for aggregate, _, identity, _ in again if aggregate == "order"]
    assert shop.query("SELECT count(*) FROM cdc.outbox") == [(len(progress),)]
    assert "rows that were still there are published again" in shop.run_once("check").stdout
    for wrong in ("yesterday", "2026-01-31T12:00:00"):
        refused = run(["outbox", "republish", "--since", wrong, "--config", str(shop.config())], deadline_s=60)
        assert (refused.returncode, "--since" in refused.stderr) == (2, True)
    refused = run(["outbox", "republish", "--since", "2026-01-31", "--config", str(shop.config())], deadline_s=60)
    assert "2026-01-31T00:00:00Z" in refused.stderr  # a time as it takes them
    shop.judge()


def refused_prune(shop: Captured) -> str:
    done = run(["outbox", "prune", "--config", str(shop.config())], deadline_s=60)
    assert done.returncode == 4
    return done.stderr


def test_rows_of_an_outbox_that_stopped_stay_and_are_published_again(shop: Captured) -> None:
    del shop.settings["outbox"]["tables"][0]["retention_s"]
    shop.start()
    shop.await_caught_up()
    write(shop, "Before")
    shop.await_caught_up()
    shop.cdc("table", "stop", OUTBOX)
    eventually(lambda: shop.states().get(OUTBOX, {}).get("status") == "stopped", 60.0, "the table stopped")
    write(shop, "Meanwhile")
    shop.await_caught_up()
    assert f"{OUTBOX} is stopped, so its rows are not published" in refused_prune(shop)
    shop.cdc("table", "start", OUTBOX)
    eventually(lambda: shop.states()[OUTBOX]["status"] == "captured", 60.0, "the table joins again")
    write(shop, "After")
    shop.await_caught_up()
    came = [kind_of(record) for record in events(shop)]
    assert came == ["BeforeRow", "BeforeMessage", "MeanwhileMessage", "AfterRow", "AfterMessage"]
    assert f"events of {OUTBOX} that committed before" in refused_prune(shop)
    assert shop.cdc("outbox", "republish", "--since", "2026-01-01T00:00:00Z").endswith(" 3 rows are published again\n")
    shop.await_caught_up()
    came = [kind_of(record) for record in events(shop)]
    assert came[5:] == ["BeforeRow", "MeanwhileRow", "AfterRow"]
    assert shop.cdc("outbox", "prune") == f"{OUTBOX}: 3 rows deleted\n"


def too_large_for_its_topic(shop: Captured) -> None:
    """The application made the topic, and it takes little. What does not fit is a dead letter, and nothing waits."""
    create_topic(shop.bootstrap_servers, f"{shop.name}-events.small", "delete", max_message_bytes="20000")
    write(shop, "Large", "small", size=30_000)
    write(shop, "Small", "small")
    shop.await_caught_up()
    assert len(events(shop, "small")) == 2
    letters = [parse(shop.records(topic)[0].value or b"") for topic in (OUTBOX, "outbox_dead_letters")]
    assert [letter["event"]["type"] for letter in letters] == ["LargeRow", "LargeMessage"]
    for letter in letters:
        assert re.match(
            r"a record of 30\d\d\d bytes is larger than topic \S+-events.small takes, 20000", letter["reason"]
        )
        assert len(letter["event"]["payload"]) > 30_000, "the dead letters' topic takes it whole"
    delete_topic(shop.bootstrap_servers, f"{shop.name}-events.small")

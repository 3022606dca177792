"""The content of a table's row appears in the table's topic only, whatever other records its batch holds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest

from tests.checker.records import read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.topics import delete_topic

SECRET: LiteralString = "public.secret"
TABLES: LiteralString = """
CREATE TABLE secret (id bigint PRIMARY KEY, note text, big text);
ALTER TABLE secret ALTER big SET STORAGE external;
CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
                     aggregateid text NOT NULL, type text NOT NULL, payload text);
"""
TRANSACTIONS = 20


@pytest.fixture
def secrets(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [SECRET]) as made:
        topic = f"{unique}-events.order"
        made.settings = {"outbox": {"tables": [{"table": "public.outbox", "route.topic.replacement": topic}]}}
        try:
            yield made
        finally:
            delete_topic(kafka.bootstrap_servers, topic)


@pytest.mark.promise(1)
def test_an_event_without_payload_does_not_get_the_row_of_its_neighbour(secrets: Captured) -> None:
    """The update leaves its large value out of the log, so its row is not complete when the batch is assembled."""
    secrets.query("INSERT INTO secret VALUES (1, 'salary 100000', repeat('x', 100000))")
    capture = secrets.start()
    secrets.await_caught_up()
    assert capture.terminate() == 0
    with secrets.connect() as connection:
        for number in range(TRANSACTIONS):
            with connection.transaction():
                connection.execute(
                    "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', %s, 'Placed', '')",
                    [str(number)],
                )
                connection.execute("UPDATE secret SET note = %s WHERE id = 1", [f"salary {number}"])
    secrets.start()
    secrets.await_caught_up()
    events = read_topics(secrets.bootstrap_servers, [f"{secrets.name}-events.order"])[0]
    assert sorted((int(event.key or b""), event.value) for event in events) == [(n, b"") for n in range(TRANSACTIONS)]
    rows = [json.loads(record.value or b"")["after"] for record in secrets.records(SECRET)]
    assert [row["note"] for row in rows] == ["salary 100000", *(f"salary {number}" for number in range(TRANSACTIONS))]
    assert {len(row["big"]) for row in rows} == {100_000}
    secrets.judge()

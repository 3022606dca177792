"""The recipe of the documentation, whole: events of an outbox under capture, `cdc view run`, its log, and its views."""

import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml
from confluent_kafka import KafkaException

from tests.conformance.stores import url_of
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.http_server import HttpServer, free_port
from tests.support.topics import delete_topic
from tests.support.view_process import ViewProcess
from tests.support.view_tables import PAGE
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

DEADLINE_S: Final = 60.0
SCHEMA: Final = "CREATE TABLE orders (id int PRIMARY KEY)"
PUBLISH: Final = "INSERT INTO cdc.outbox (aggregatetype, aggregateid, type, payload) VALUES ('account', %s, %s, %s)"


def example(language: str) -> str:
    """The page's block of code about events of an outbox."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if "outbox" in block)
    return str(found)


@pytest.fixture
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with (
        new_database(postgres) as base,
        under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, ["public.orders"]) as made,
    ):
        sections: dict[str, Any] = yaml.safe_load(example("yaml"))
        sections["outbox"]["tables"][0]["route.topic.replacement"] = f"{unique}-events.${{routedByValue}}"
        sections["event_logs"]["accounts"]["topics"] = [f"{unique}-events.account"]
        for name, view in sections["views"].items():
            view["target"] = {"type": "sql", "url": url_of(base), "own_schema": f"of_{name}"}
        made.settings = {
            **sections,
            "sinks": {"base": {"type": "sql", "url": url_of(base)}},
            "http": {"view_port": free_port()},
        }
        made.cdc("outbox", "migrate")
        try:
            yield made
        finally:
            made.end()
            with suppress(KafkaException):
                delete_topic(kafka.bootstrap_servers, f"{unique}-events.account")


class Ledger:
    """What the application has published, and the plain fold of it."""

    def __init__(self, shop: Captured) -> None:
        self._shop = shop
        self._chance = random.Random(5)
        self._states: dict[str, dict[str, Any]] = {}
        self._histories: dict[str, list[str]] = {}

    def publish_the_pages(self) -> None:
        self._shop.query(example("postgres").encode())  # type: ignore[arg-type]
        for kind, payload in (("Opened", {"owner": "Ada"}), ("Deposited", {"amount": "50.00"})):
            self._fold("7", kind, payload)
        self._fold("7", "Withdrawn", {"amount": "20.00"})

    def publish(self, transactions: int) -> None:
        """Writes events of which the rows are deleted at once, in transactions of which some are rolled back."""
        with self._shop.connect() as connection:
            for _ in range(transactions):
                written = []
                is_kept = self._chance.random() < 0.8
                with connection.transaction(force_rollback=not is_kept):
                    for _ in range(self._chance.randint(1, 6)):
                        account = str(self._chance.randint(1, 9))
                        kind = self._chance.choice(("Opened", "Deposited", "Withdrawn", "Closed"))
                        payload = (
                            {"owner": f"owner {self._chance.randint(1, 99)}"}
                            if kind == "Opened"
                            else {"amount": f"{self._chance.randint(1, 9999) / 100:.2f}"}
                        )
                        connection.execute(PUBLISH, (account, kind, json.dumps(payload)))
                        written.append((account, kind, payload))
                    connection.execute("DELETE FROM cdc.outbox")
                for event in written if is_kept else ():
                    self._fold(*event)

    def _fold(self, account: str, kind: str, payload: dict[str, str]) -> None:
        state = self._states.setdefault(account, {"balance": Decimal(0), "owner": None, "is_closed": False})
        amount = Decimal(payload.get("amount", "0"))
        state["balance"] += {"Deposited": amount, "Withdrawn": -amount}.get(kind, 0)
        state["owner"] = payload.get("owner", state["owner"])
        state["is_closed"] |= kind == "Closed"
        self._histories.setdefault(account, []).append(kind)

    def states(self) -> list[tuple[Any, ...]]:
        return sorted((account, *state.values()) for account, state in self._states.items())

    def histories(self) -> list[tuple[str, list[str]]]:
        return sorted(self._histories.items())


def test_the_recipe_folds_the_events_of_an_outbox_over_kills(shop: Captured) -> None:
    dsn = shop.settings["sinks"]["base"]["url"]
    ledger = Ledger(shop)

    def read(statement: str) -> list[Any]:
        with psycopg.connect(dsn, autocommit=True) as connection, suppress(psycopg.errors.UndefinedTable):
            return connection.execute(statement.encode()).fetchall()
        return []

    def states() -> list[Any]:
        return read("SELECT account, balance, owner, is_closed FROM views.account_states ORDER BY account")

    def are_equal() -> bool:
        histories = read(
            "SELECT account, jsonb_path_query_array(history, '$[*].type') FROM views.account_histories ORDER BY account"
        )
        return states() == ledger.states() and histories == ledger.histories()

    def difference() -> str:
        return f"{states()} is {ledger.states()}; {view.said()}"

    shop.start()
    shop.await_caught_up()
    view = ViewProcess(shop)
    try:
        ledger.publish_the_pages()
        eventually(are_equal, DEADLINE_S, difference)
        assert ("7", Decimal("30.00"), "Ada", False) in states()
        ledger.publish(25)
        view.kill()
        ledger.publish(5)
        view = ViewProcess(shop)
        eventually(are_equal, DEADLINE_S, difference)
        server = HttpServer(shop.settings["http"]["view_port"])
        server.await_sample('watershed_event_log_lag_records{event_log="accounts"} 0.0')
        (log, *views) = [json.loads(line) for line in shop.cdc("view", "status", "--json").splitlines()]
        assert (log["name"], log["state"], log["behind"], log["rejected"]) == ("accounts", "serving", 0, 0)
        assert [one["state"] for one in views] == ["serving", "serving"]
        assert view.terminate() == 0
        assert "Traceback" not in view.said()
    finally:
        view.kill()

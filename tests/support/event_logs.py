"""An event log of a real topic: random events as the outbox writes them, jobs that load them, a view over them."""

import json
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import psycopg
from confluent_kafka import Producer

from cdc.config.config_file import Config
from cdc.model.errors import ConnectionLost
from tests.conformance.stores import url_of
from tests.support.topics import create_topic
from tests.support.views import until_idle
from tests.support.waiting import eventually
from watershed.views import event_log
from watershed.views.event_log import EventLogLoader, EventLogSupervisor, open_log_base, wait_for_log
from watershed.views.event_log_base import EventLogBase, behind
from watershed.views.event_records import EventTopicReader
from watershed.views.maintainer import ViewMaintainer, define
from watershed.views.targets import open_base, open_target, target_generations

PARTITIONS: Final = 3
STATES: Final = """
SELECT e.aggregateid AS account, count(*)::int AS events, max(e.no)::int AS last,
       sum((e.payload->>'amount')::int)::int AS balance,
       string_agg(e.type, ',' ORDER BY e.no) AS types
  FROM event_logs.accounts e GROUP BY e.aggregateid
"""
FOLDED: Final = {
    "sql": "SELECT e.aggregateid AS account, e.no, e.type, (e.payload->>'amount')::int AS amount "
    "FROM event_logs.accounts e",
    "fold": {
        "function": f"{__name__}:applied",
        "order": ["no"],
        "columns": {"events": "int", "last": "int", "balance": "int", "types": "text"},
    },
}
Row = tuple[str, int, int, int, str]  # of the view: account, events, last, balance, types


def applied(state: dict[str, Any] | None, event: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of an account after an event, as the query STATES computes it."""
    state = state or {"events": 0, "balance": 0, "types": ""}
    return {
        "events": state["events"] + 1,
        "last": event["no"],
        "balance": state["balance"] + event["amount"],
        "types": ",".join([*filter(None, [state["types"]]), event["type"]]),
    }


class Accounts:
    """The log `accounts` of one topic, and the view `states` over it."""

    def __init__(self, servers: str, dsn: str, name: str, seed: int, *, is_fold: bool = False) -> None:
        """`is_fold`: whether the view is a fold in Python."""
        self._is_fold = is_fold
        self.dsn, self.servers, self.name = dsn, servers, name
        self.topic = f"{name}-events.account"
        self.schema = f"watershed_views_{name}"
        self.settings = Config.model_validate(self._sections())
        self.events: list[tuple[str, str, int, int]] = []  # account, type, amount, offset: what the log must have
        self._chance = random.Random(seed)
        self._number = 0
        self._producer: Producer | None = None
        self.create_topic()

    def create_topic(self) -> None:
        """Returns when its leaders are known."""
        create_topic(self.servers, self.topic, policy="delete", partitions=PARTITIONS)
        topics = EventTopicReader(self.settings.kafka, [self.topic])

        def has_leaders() -> bool:
            with suppress(ConnectionLost):
                return len(topics.bounds(topics.identities())) == PARTITIONS
            return False

        eventually(has_leaders, 30.0, "the topic has leaders")

    def close(self) -> None:
        self._producer = None

    def _sections(self) -> dict[str, Any]:
        url = url_of(self.dsn)
        return {
            "source": {"dsn": self.dsn, "tables": ["public.orders"]},
            "kafka": {"bootstrap_servers": self.servers},
            "topics": {"prefix": self.name},
            "outbox": {"tables": [{"table": "cdc.outbox", "table.fields.additional.placement": "type:header:kind"}]},
            "sinks": {"copy": {"type": "sql", "url": url}},
            "event_logs": {"accounts": {"base": "copy", "topics": [self.topic]}},
            "views": {
                "states": {
                    "base": "copy",
                    **(FOLDED if self._is_fold else {"sql": STATES}),
                    "key": ["account"],
                    "target": {"type": "sql", "url": url, "own_schema": "of_views"},
                    "keys_per_batch": 3,
                }
            },
        }

    # ---- events

    def publish(self, transactions: int = 3) -> None:
        """Writes transactions of random events, of which some are aborted, and some events are repeated."""
        if self._producer is None:
            self._producer = Producer(
                {"bootstrap.servers": self.servers, "transactional.id": self.name, "linger.ms": 0}
            )
            self._producer.init_transactions(30)
        producer = self._producer
        for _ in range(transactions):
            producer.begin_transaction()
            written: list[tuple[str, str, int, list[int]]] = []
            for _ in range(self._chance.randint(1, 8)):
                self._number += 1
                account = f"a{self._chance.randint(1, 5)}"
                kind, amount = self._chance.choice(("opened", "paid", "closed")), self._chance.randint(-9, 9)
                offsets: list[int] = []
                for _ in range(1 + (self._chance.random() < 0.2)):
                    self.send(
                        producer, account, str(self._number), kind, json.dumps({"amount": amount}).encode(), offsets
                    )
                written.append((account, kind, amount, offsets))
            producer.flush(30)
            if self._chance.random() < 0.25:
                producer.abort_transaction(30)
                continue
            producer.commit_transaction(30)
            self.events += [(account, kind, amount, min(offsets)) for account, kind, amount, offsets in written]

    def send(
        self,
        producer: Producer,
        account: str,
        event_id: str,
        kind: str,
        value: bytes | None,
        offsets: list[int] | None = None,
    ) -> None:
        """Writes one record as the outbox does. `offsets`: to which its offset is added."""

        def note(_: Any, message: Any) -> None:
            if offsets is not None:
                offsets.append(message.offset())

        headers: list[tuple[str, str | bytes | None]] = [("id", event_id.encode()), ("kind", kind.encode())]
        producer.produce(self.topic, value, account.encode(), headers=headers, on_delivery=note)

    def plain_fold(self) -> list[Row]:
        """Returns the state of each account: the view's rows."""
        found = []
        for account in sorted({account for account, *_ in self.events}):
            own = sorted((event for event in self.events if event[0] == account), key=lambda event: event[3])
            types = ",".join(kind for _, kind, _, _ in own)
            found.append((account, len(own), own[-1][3], sum(amount for _, _, amount, _ in own), types))
        return found

    # ---- jobs

    @contextmanager
    def loader(self) -> Iterator[tuple[EventLogLoader, EventLogBase]]:
        """A job that has the lock, and has not started."""
        with open_log_base(self.settings, "accounts") as base, patch.object(event_log, "READ_S", 0.05):
            base.install()
            assert base.lock("accounts")
            with closing(EventLogSupervisor(self.settings, "accounts")._open_job(base)) as job:
                yield job, base

    def load(self) -> None:
        """One job, until the log has what the topic has."""
        with self.loader() as (job, base):
            job.start()
            topics = EventTopicReader(self.settings.kafka, [self.topic])
            bounds = topics.bounds(topics.identities())

            def has_all() -> bool:
                job.step()
                return not behind(base.offsets("accounts"), bounds)

            eventually(has_all, 30.0, "the log has what its topic has")
            job.step()

    @contextmanager
    def maintainer(self) -> Iterator[ViewMaintainer]:
        with open_base(self.settings, "states") as base:
            definition = define("states", self.settings.views["states"], base)
            target = partial(open_target, self.settings, "states")
            wait = partial(wait_for_log, self.settings, "accounts", lambda: True)
            generations = target_generations(self.settings, "states")
            with closing(ViewMaintainer(definition, base, target, wait, generations=generations)) as job:
                yield job

    def keep(self) -> None:
        """One job of the view, until there is nothing to do."""
        with self.maintainer() as job:
            job.start()
            until_idle(job)

    # ---- what is there

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def view(self) -> list[Row]:
        return self.query("SELECT account, events, last, balance, types FROM views.states ORDER BY 1")

    def rejected(self) -> list[tuple[Any, ...]]:
        return self.query(f"SELECT reason, value FROM {self.schema}.log_rejected ORDER BY partition, no")

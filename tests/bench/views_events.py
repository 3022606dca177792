"""Measures how fast an event log loads the events of a topic, and how fast a Python fold over it computes states."""

import json
import time
from typing import Any, Final

from confluent_kafka import Producer

from tests.support.event_logs import Accounts
from watershed.devstack.endpoints import Endpoints

ACCOUNTS: Final = 2_000
TOGETHER: Final = 100  # events of one transaction


def events(endpoints: Endpoints, dsn: str, count: int) -> dict[str, Any]:
    """Returns the rates for `count` events of one topic, ten of each account."""
    accounts = Accounts(endpoints.bootstrap_servers, dsn, "bench_events", 1, is_fold=True)
    producer = Producer({"bootstrap.servers": endpoints.bootstrap_servers, "transactional.id": "bench_events"})
    producer.init_transactions(30)
    for start in range(0, count, TOGETHER):
        producer.begin_transaction()
        for number in range(start, start + TOGETHER):
            value = json.dumps({"amount": number % 19 - 9}).encode()
            accounts.send(producer, f"a{number % ACCOUNTS}", str(number), "paid", value)
        producer.commit_transaction(30)
    begun = time.monotonic()
    accounts.load()
    loaded_s = time.monotonic() - begun
    begun = time.monotonic()
    accounts.keep()
    folded_s = time.monotonic() - begun
    (rows, size), *_ = accounts.query(
        f"SELECT (SELECT count(*) FROM {accounts.schema}.log_accounts), "
        f"pg_total_relation_size('{accounts.schema}.log_accounts')"
    )
    assert rows == count, f"{rows} of {count} events are in the log"
    return {
        "events": count,
        "loaded_per_s": round(count / loaded_s),
        "folded_per_s": round(count / folded_s),
        "log_mb": round(size / 1e6, 1),
    }

"""The shop's clients on a real server: what they say they committed is what PostgreSQL's log has."""

import time
from collections import Counter

import psycopg
import pytest
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.model.lsn import format_lsn
from tests.support.waiting import eventually
from watershed.client.outbox_migrations import Names, migrate
from watershed.demo.rows import TABLES, Stock
from watershed.demo.shopper import PRICE_RISE_PRODUCTS, UNDO, Shopper, Statement, Transaction
from watershed.demo.workload import CLIENT_COUNT, Workload, create_shop, flushed_lsn, run_statements

pytestmark = pytest.mark.whole

STOCK = Stock(5, 1000)


@pytest.fixture
def shop(fresh_database: str) -> str:
    """The shop's tables, and what it needs for events."""
    create_shop(fresh_database, STOCK)
    migrate(SourceConfig(dsn=SecretStr(fresh_database), tables=("public.orders",)), Names())
    return fresh_database


def test_the_shop_is_created_as_planned(fresh_database: str) -> None:
    create_shop(fresh_database, STOCK)
    with psycopg.connect(fresh_database) as connection:
        counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
        assert connection.execute(f"SELECT {counts}".encode()).fetchall() == [(1000,)]
        # Large values would be stored out of line, and leave the log.
        out_of_line = connection.execute(
            """
            SELECT sum(pg_relation_size(reltoastrelid)) FROM pg_class WHERE relname = ANY(%s)
        """,
            [list(TABLES)],
        ).fetchall()
        assert out_of_line == [(0,)]


def events(transaction: Transaction, text: str) -> int:
    """How many statements of this kind a transaction commits."""

    def is_wanted(statement: Statement) -> bool:
        return statement.text.startswith(text)

    kept = transaction.statements[transaction.statements.index(UNDO) if UNDO in transaction.statements else 0 :]
    return sum(map(is_wanted, kept)) if transaction.commits else 0


def test_a_plan_counts_exactly_the_row_changes_in_the_log(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION shop FOR TABLE {', '.join(TABLES)}".encode())
        connection.execute("SELECT pg_create_logical_replication_slot('counted', 'pgoutput', true)")
        planned = messages = rows = 0
        kinds: Counter[str] = Counter()
        shoppers = [Shopper(STOCK, client, CLIENT_COUNT) for client in range(CLIENT_COUNT)]
        for _ in range(150):
            for shopper in shoppers:
                transaction = shopper.next()
                run_statements(connection, transaction.statements, commits=transaction.commits)
                planned += transaction.rows
                messages += events(transaction, "SELECT cdc.publish(")
                rows += events(transaction, "INSERT INTO cdc.outbox ")
                kinds[transaction.kind] += 1
        logged = connection.execute("""
            SELECT count(*) FILTER (WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D')),
                   count(*) FILTER (WHERE chr(get_byte(data, 0)) = 'M')
            FROM pg_logical_slot_get_binary_changes(
              'counted', NULL, NULL, 'proto_version', '1', 'publication_names', 'shop', 'messages', 'true')
        """).fetchall()
        kept = connection.execute("SELECT count(*) FROM cdc.outbox").fetchall()
    assert {"move customer", "remove order", "roll back", "change of mind"} <= set(kinds)
    assert logged == [(planned, messages)] and messages > 50
    assert kept == [(rows,)] and rows > 5


def test_the_workload_stops_cleanly_below_the_lsn_that_it_reports(shop: str) -> None:
    workload = Workload(shop, STOCK, rate=600)
    workload.start()
    try:
        eventually(lambda: workload.rows > 300, 90.0, "row changes")
    finally:
        lsn = workload.stop()
    committed = workload.rows
    with psycopg.connect(shop, autocommit=True) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'shop client%'"
        ).fetchall() == [(0,)]
        written = connection.execute("SELECT pg_current_wal_insert_lsn() >= %s::pg_lsn", [format_lsn(lsn)]).fetchall()
        assert written == [(True,)]
    assert lsn <= flushed_lsn(shop)
    assert workload.rows == committed


def test_the_workload_does_not_exceed_its_rate(shop: str) -> None:
    workload = Workload(shop, STOCK, rate=200)
    began = time.monotonic()
    workload.start()
    try:
        eventually(lambda: workload.rows >= 400, 90.0, "400 row changes")
    finally:
        workload.stop()
    # Each client's next transaction waits for what the last one cost: one transaction of each is not paid for yet.
    largest = PRICE_RISE_PRODUCTS * CLIENT_COUNT
    assert workload.rows <= 200 * (time.monotonic() - began) + largest

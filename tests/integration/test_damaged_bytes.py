"""Bytes that are damaged between the server and capture, by a proxy."""

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.integration.conftest import ITEMS, OTHER
from tests.support.captured import Captured
from tests.support.hanging_proxy import HangingProxy
from tests.support.waiting import eventually

SENT, ARRIVES = "café".encode(), b"caf\xff\xa9"
# CopyData with a keepalive, and the high half of its WAL end, which is zero up to 4 GiB of log.
KEEPALIVE = b"d\x00\x00\x00\x16k\x00\x00\x00"


@pytest.fixture
def proxy(items: Captured) -> Iterator[HangingProxy]:
    with HangingProxy(int(str(conninfo_to_dict(items.dsn)["port"]))) as proxy:
        items.settings = {"source": {"dsn": make_conninfo(items.dsn, port=proxy.port), "tables": [ITEMS, OTHER]}}
        items.tables = [ITEMS, OTHER]
        yield proxy


def test_a_value_that_was_damaged_once_is_read_again(items: Captured, proxy: HangingProxy) -> None:
    """It stopped the table for good, and SQL_ASCII was blamed."""
    capture = items.start()
    items.await_caught_up()
    proxy.damage(SENT, ARRIVES)
    items.query("INSERT INTO items VALUES (1, 'café'), (2, 'tea')")
    items.await_caught_up()
    assert proxy.damaged == 1
    assert items.unlike([ITEMS, OTHER]) == {}
    assert items.states()[ITEMS]["status"] == "captured"
    message = capture.said()
    assert "session ended by damaged bytes" in message
    assert "SQL_ASCII" not in message
    assert [change.op for change in items.changes() if change.table == ITEMS] == ["c", "c"]


def test_a_value_that_comes_damaged_each_time_stops_its_table_alone(items: Captured, proxy: HangingProxy) -> None:
    capture = items.start()
    items.await_caught_up()
    proxy.damage(SENT, ARRIVES, times=1_000)
    items.query("INSERT INTO items VALUES (1, 'café')")
    items.query("INSERT INTO other VALUES (1)")
    eventually(lambda: items.states()[ITEMS]["status"] == "stopped", describe=capture.said)
    assert proxy.damaged >= 3  # sessions without the table are sent the row too
    stopped = items.states()[ITEMS]
    assert "a value is not UTF-8: the server sent the same bytes 3 times" in stopped["message"]
    assert "SQL_ASCII" not in stopped["message"] + stopped["next"]
    items.await_caught_up()
    assert items.unlike([OTHER]) == {}
    proxy.damage(SENT, SENT)
    assert items.ask("start_table", tables=[ITEMS]).is_accepted
    eventually(lambda: items.states()[ITEMS]["status"] == "captured" and not items.unlike([ITEMS, OTHER]))


def test_a_damaged_keepalive_loses_nothing(items: Captured, proxy: HangingProxy) -> None:
    """Its position was recorded and confirmed; the server forgot what came, and a start said that it was restored."""
    capture = items.start()
    items.await_caught_up()
    proxy.damage(KEEPALIVE + b"\x00", KEEPALIVE + b"\x7f")
    items.query("SELECT pg_logical_emit_message(true, 'somebody', 'else')")  # moves the log, and publishes nothing
    eventually(lambda: proxy.damaged == 1)
    items.query("SELECT pg_logical_emit_message(true, 'somebody', 'else')")
    items.await_caught_up()
    assert capture.terminate() == 0
    items.query("INSERT INTO items VALUES (1, 'behind the damage')")
    items.start()
    items.await_caught_up()
    assert items.unlike([ITEMS, OTHER]) == {}
    assert "restored" not in items._said()
    assert items.progress() < 0x7F << 32

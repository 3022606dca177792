"""A replication connection whose other side has gone without a word."""

import time

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost
from cdc.model.lsn import Lsn
from cdc.postgres import replication
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection
from tests.conftest import PostgresServer
from tests.support.hanging_proxy import HangingProxy
from tests.support.waiting import eventually

SLOT = "SELECT slot_name::text, active FROM pg_replication_slots WHERE database = current_database()"


def config(dsn: str) -> SourceConfig:
    return SourceConfig.model_validate({"dsn": dsn, "tables": ("public.things",)})


def take(stream: ReplicationConnection, wait_s: float) -> list[bytes]:
    """One round of the loop."""
    frames = stream.read(1_000, 1 << 20)
    stream.send_status(Lsn(0), Lsn(0), reply_requested=False)
    if not frames:
        stream.wait(wait_s)
    return frames


def test_a_proxy_that_hangs_for_ever_is_found_out_once_the_server_has_given_up(
    postgres: PostgresServer, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "SILENCE_S", 2.0)
    monkeypatch.setattr(replication, "ASK_S", 0.1)
    direct = config(fresh_database)
    with (
        connect(direct) as sql,
        HangingProxy(int(str(conninfo_to_dict(fresh_database)["port"]))) as proxy,
    ):
        sql.execute("CREATE PUBLICATION everything")
        sql.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        ((slot, _),) = sql.execute(SLOT).fetchall()
        stream = ReplicationConnection(config(make_conninfo(fresh_database, port=proxy.port)))
        stream.start(slot, "everything", Lsn(0))
        at_first = stream._checked_at
        until = time.monotonic() + 2 * replication.SILENCE_S
        eventually(lambda: take(stream, 0.05) is None or time.monotonic() > until)
        assert stream._checked_at == at_first, "whoever speaks is not asked for elsewhere"

        proxy.hang()

        def is_looked_for() -> bool:
            take(stream, 0.05)
            return stream._checked_at > at_first

        eventually(is_looked_for)  # and left alone, as long as the server streams to us
        proxy.end()
        eventually(lambda: sql.execute(SLOT).fetchall() == [(slot, False)], describe="the server has given up")

        def is_found_out() -> bool:
            try:
                take(stream, 0.05)
            except ConnectionLost as error:
                return "the server stopped streaming" in error.message
            return False

        eventually(is_found_out)
        stream.close()

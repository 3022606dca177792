"""`cdc check` finds what is wrong with the settings of a PostgreSQL server of the test's own, and each printed fix
works."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.checked import execute, sql_of, the_one, troubles
from watershed.devstack import postgres as devstack_postgres
from watershed.devstack.stack import Stack

# What an administrator sets by ALTER SYSTEM, which options of the command line would override.
LEFT_OUT: Final = ("wal_level", "max_replication_slots", "max_wal_senders")
SOUND: Final = {"wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10"}


@dataclass
class Server:
    """A server whose settings the test changes, and a database under capture in it."""

    items: Captured
    stack: Stack

    def alter(self, **settings: str) -> None:
        """Settings that need a restart, and the restart."""
        for name, value in settings.items():
            self.as_superuser(f"ALTER SYSTEM SET {name} = {value}")
        self.stack.restart("postgres")

    def as_superuser(self, statements: str) -> None:
        execute(self.items.superuser_dsn, statements)

    def file(self, setting: str) -> Path:
        with psycopg.connect(self.items.superuser_dsn) as connection:
            row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        assert row is not None
        return Path(row[0])


@pytest.fixture(scope="module")
def server(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("check-server")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o711)  # PostgreSQL may run under another account than ours
    settings = {name: value for name, value in devstack_postgres.SETTINGS.items() if name not in LEFT_OUT}
    with pytest.MonkeyPatch.context() as patch, Stack(folder / "stack", temporary=True, given={}) as stack:
        patch.setattr(devstack_postgres, "SETTINGS", settings)
        endpoints = stack.start("postgres")
        made = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
        with new_database(made) as dsn, under_capture(made, kafka, dsn, "checked", folder, SMALL, [ITEMS]) as items:
            found = Server(items, stack)
            found.alter(**SOUND)
            yield found


def test_settings_that_need_a_restart(server: Server) -> None:
    assert troubles(server.items) == []
    server.alter(wal_level="replica", max_replication_slots="0", max_wal_senders="0")
    found = troubles(server.items)
    for expected in ("wal_level is replica", "max_replication_slots is 0", "max_wal_senders is 0"):
        server.as_superuser(sql_of(the_one(found, "source", expected).next))
    server.stack.restart("postgres")
    assert troubles(server.items) == []


def test_slots_and_senders_that_are_all_in_use(server: Server) -> None:
    server.alter(max_replication_slots="1", max_wal_senders="1")
    server.as_superuser("SELECT pg_create_physical_replication_slot('of_another')")
    other = pq.PGconn.connect(make_conninfo(server.items.superuser_dsn, replication="database").encode())
    try:
        found = troubles(server.items)
        for expected in ("all 1 replication slots of the server are in use", "the server has no free WAL sender"):
            server.as_superuser(sql_of(the_one(found, "source", expected).next))
        assert len(found) == 2
    finally:
        other.finish()
    server.stack.restart("postgres")
    other = pq.PGconn.connect(make_conninfo(server.items.superuser_dsn, replication="database").encode())
    try:
        assert troubles(server.items) == []
    finally:
        other.finish()
        server.as_superuser("SELECT pg_drop_replication_slot('of_another')")


def test_a_wrong_password_and_a_host_that_is_not_admitted(server: Server) -> None:
    hba, role = server.file("hba_file"), "guarded"
    server.as_superuser(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'right' IN ROLE watershed")
    text = hba.read_text()
    try:
        hba.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{text}")
        server.as_superuser("SELECT pg_reload_conf()")
        for password, expected in (("wrong", "password authentication failed"), ("", "no password supplied")):
            dsn = make_conninfo(server.items.dsn, user=role, password=password)
            server.items.settings = {"source": {"dsn": dsn}}
            one = the_one(troubles(server.items), "source", expected)
            assert one.next == "correct the user in source.dsn, and the password in PGPASSWORD, ~/.pgpass or source.dsn"
        server.items.settings["source"]["dsn"] = make_conninfo(server.items.dsn, user=role, password="right")
        assert troubles(server.items) == []

        hba.write_text(
            f"hostssl all {role} 127.0.0.1/32 scram-sha-256\nlocal all all trust\nhost all postgres all trust\n"
        )
        server.as_superuser("SELECT pg_reload_conf()")
        one = the_one(troubles(server.items), "source", "no pg_hba.conf entry")
        assert one.next == "add a pg_hba.conf line for this role, database and host"
        hba.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{text}")
        server.as_superuser("SELECT pg_reload_conf()")
        assert troubles(server.items) == []
    finally:
        hba.write_text(text)
        server.as_superuser(f"SELECT pg_reload_conf(); DROP ROLE {role}")
        server.items.settings = {}


def test_tls_that_the_server_does_not_have(server: Server) -> None:
    server.items.settings = {"source": {"dsn": make_conninfo(server.items.dsn, sslmode="require")}}
    one = the_one(troubles(server.items), "source", "can't connect with TLS")
    option, _, value = one.next.removeprefix("set ").partition(" in source.dsn")[0].partition("=")
    server.items.settings["source"]["dsn"] = make_conninfo(server.items.dsn, **{option: value})
    assert troubles(server.items) == []
    server.items.settings = {}


def test_a_standby(server: Server) -> None:
    """A standby that takes connections. The same address is that of a primary afterwards."""
    signal_file = server.file("data_directory") / "standby.signal"
    signal_file.touch()
    server.stack.restart("postgres")
    try:
        one = the_one(troubles(server.items), "source", "the server is a standby")
        assert one.next.startswith("name the primary in source.dsn, or all servers; to read this standby's log")
    finally:
        signal_file.unlink()
        server.stack.restart("postgres")
    assert troubles(server.items) == []

"""Upgrades by pg_upgrade: from 16 to 18, where slots are lost, and from 18 to 18, where they are kept and the system
identifier changes all the same. The topics stay, and no row is published again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.integration.test_move import FILL, TABLES, move, of_epoch, position
from tests.support.captured import Captured, under_capture
from tests.support.standby_servers import PgServer, servers_of
from tests.support.waiting import eventually
from watershed.devstack.instance import HOST
from watershed.devstack.postgres import DATABASE, ROLE, SUPERUSER
from watershed.devstack.stack import Stack

pytestmark = pytest.mark.long

LOCALE = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
LOGICAL = "-c wal_level=logical -c max_replication_slots=60"


@pytest.fixture(params=[16, 18])
def pair(request: pytest.FixtureRequest) -> Iterator[list[PgServer]]:
    """An old server that runs, and a new one of version 18 with an empty cluster that pg_upgrade can fill."""
    with servers_of([request.param, 18]) as made:
        old, new = made
        old.start()
        # Checksums are on by default since 18, and must be as in the old cluster.
        checksums = "--no-data-checksums" if old.version < 18 else "--data-checksums"
        locale = LOCALE if old.version >= 17 else ["--locale=C"]
        new.run("initdb", "-D", new.data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync", checksums, *locale)
        yield made


def dsn(server: PgServer, user: str) -> str:
    return f"postgresql://{user}@{HOST}:{server.port}/{DATABASE}"


@pytest.fixture
def upgrading(
    pair: list[PgServer], kafka: KafkaBroker, stack: Stack, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Capture streams from the old server."""
    server = PostgresServer(dsn(pair[0], ROLE), dsn(pair[0], SUPERUSER), stack)
    with under_capture(server, kafka, server.dsn, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        made.query(FILL)
        made.start()
        made.await_caught_up()
        yield made


@pytest.mark.promise(1)
@pytest.mark.promise(4)
def test_an_upgrade_publishes_no_row_again(upgrading: Captured, pair: list[PgServer]) -> None:
    old, new = pair
    upgrading.query("UPDATE items SET name = 'updated' WHERE id % 10 = 0; DELETE FROM items WHERE id = 78")
    upgrading.await_caught_up()
    topics, before = upgrading.topics(), position(upgrading)
    old.stop()  # first: capture then receives and confirms everything, which pg_upgrade requires of slots
    upgrading.running().await_said("session lost")
    assert upgrading.running().terminate() == 0
    words: list[str | Path] = [
        "-b",
        old.programs(),
        "-B",
        new.programs(),
        "-d",
        old.data,
        "-D",
        new.data,
        "-U",
        SUPERUSER,
        "-N",
    ]
    new.run("pg_upgrade", *words, "-o", LOGICAL, "-O", LOGICAL, "--socketdir", new.instance.folder)
    new.start()
    slots = new.query("SELECT slot_name::text FROM pg_replication_slots")
    assert slots == ([(upgrading.name,)] if old.version >= 17 else []), "from 17 on, slots are kept"
    upgrading.dsn, upgrading.superuser_dsn = dsn(new, ROLE), dsn(new, SUPERUSER)
    upgrading.query("UPDATE items SET name = 'after the upgrade' WHERE id = 5")
    upgrading.start().await_said("cdc source move, which checks that it is the same one")
    if slots:
        assert "pg_upgrade has kept it" in move(upgrading)
    done = upgrading.cdc("source", "move", *(["--replace-slot"] if slots else []))
    assert f"{ITEMS}: done, 2,999 rows compared, 1 published" in done
    upgrading.await_caught_up()
    assert (of_epoch(upgrading, 2), of_epoch(upgrading, 2, OTHER)) == ([5], [])
    assert upgrading.topics() == topics
    assert position(upgrading)["history"] == before["history"]
    upgrading.query("DELETE FROM items WHERE id = 6")
    eventually(lambda: 6 in of_epoch(upgrading, 2), 30.0, upgrading._said)
    assert upgrading.unlike([ITEMS, OTHER]) == {}
    assert upgrading.judge().epoch == 2

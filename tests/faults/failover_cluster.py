"""A primary with a synchronous and an asynchronous standby, under load, and how they are promoted."""

import random
import time
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg

from tests.faults.published import Published
from tests.support.captured import Captured
from tests.support.standby_servers import PgServer, StandbyServers
from tests.support.waiting import eventually
from watershed.devstack.instance import HOST
from watershed.devstack.postgres import DATABASE, SUPERUSER

FORKED = "forked off current database system timeline"
BACKLOG_COUNT = 20_000
BACKLOG: LiteralString = """
CREATE OR REPLACE PROCEDURE backlog(number int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..number LOOP
    INSERT INTO items VALUES (1000000 + i, gen_random_uuid()) ON CONFLICT (id) DO UPDATE SET name = excluded.name;
    COMMIT;
  END LOOP;
END $$
"""


@dataclass
class Cluster:
    """Commits, and what capture gets, wait for the synchronous standby. Between promotions all servers run."""

    servers: StandbyServers
    slot: str
    primary: PgServer = field(init=False)
    synchronous: PgServer = field(init=False)
    asynchronous: PgServer = field(init=False)
    promoted_at: float = 0.0  # when the last promotion had ended, seconds since 1970

    def __post_init__(self) -> None:
        self.primary, self.synchronous, self.asynchronous = self.servers.servers
        self.primary.start()
        for standby in (self.synchronous, self.asynchronous):
            self._rebuild(standby)

    def ready(self) -> None:
        """Both standbys have the slot, and the synchronous one all of the log that is acknowledged or published."""
        self.servers.await_synchronised(self.slot, [self.synchronous, self.asynchronous])
        name = self.synchronous.physical_slot
        self.primary.set(synchronized_standby_slots=name, synchronous_standby_names=f'FIRST 1 ("{name}")')
        # For the time after its promotion, as the documentation recommends.
        self.synchronous.set(synchronized_standby_slots=self.asynchronous.physical_slot)

    def promote_synchronous(self) -> float:
        """Of a primary that has ended; the other standby follows the new one. Returns when it began, seconds since
        1970. The former primary is not running."""
        former, began = self.primary, time.time()
        self.synchronous.promote()
        self.promoted_at = time.time()
        self.primary, self.synchronous, self.asynchronous = self.synchronous, self.asynchronous, former
        if self.synchronous.process is not None:
            self._follow(self.synchronous)
        return began

    def promote_asynchronous(self) -> float:
        """After primary and synchronous standby have ended."""
        former, began = self.primary, time.time()
        self.asynchronous.promote()
        self.promoted_at = time.time()
        self.primary, self.asynchronous = self.asynchronous, former
        return began

    def restore(self, *, former_is_synchronous: bool = False) -> None:
        """Makes standbys of the servers that do not run. The one that was the primary becomes the asynchronous standby,
        or the synchronous one."""
        self.primary.set(synchronized_standby_slots="", synchronous_standby_names="", primary_conninfo="")
        for standby in (self.synchronous, self.asynchronous):
            if standby.process is None:
                self._rebuild(standby)
        if former_is_synchronous:
            self.synchronous, self.asynchronous = self.asynchronous, self.synchronous

    def detach_asynchronous(self) -> None:
        """It receives nothing any more."""
        self.asynchronous.set(primary_conninfo="")
        eventually(lambda: not self._streams_to(self.asynchronous), 30.0, "the standby receives nothing")

    def _rebuild(self, standby: PgServer) -> None:
        standby.make_standby_of(self.primary, standby.physical_slot)

    def _follow(self, standby: PgServer) -> None:
        """Lets a running standby receive from the new primary, or copies it if it has log that the primary has not."""
        slot = standby.physical_slot
        if not self.primary.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", slot):
            self.primary.query("SELECT pg_create_physical_replication_slot(%s, true)", slot)
        log, size = standby.instance.log, standby.instance.log.stat().st_size
        address = f"host={HOST} port={self.primary.port} user={SUPERUSER} dbname={DATABASE} application_name={slot}"
        standby.set(primary_conninfo=address)

        def is_ahead() -> bool:
            return FORKED in log.read_bytes()[size:].decode(errors="replace")

        eventually(lambda: self._streams_to(standby) or is_ahead(), 30.0, "the other standby follows")
        if is_ahead():
            self._rebuild(standby)
            self.servers.await_synchronised(self.slot, [standby])

    def _streams_to(self, standby: PgServer) -> bool:
        found = self.primary.query(
            "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'",
            standby.physical_slot,
        )
        return found == [(1,)]


@dataclass
class Promotions:
    """One kind of promotion after the other. Each returns the moment at which the last promotion began."""

    cluster: Cluster
    captured: Captured
    published: Published
    chance: random.Random

    def switch(self) -> float:
        """A planned one: the former primary is shut down, and sends all that it has."""
        self.cluster.primary.stop()
        return self.cluster.promote_synchronous()

    def kill(self) -> float:
        self.cluster.primary.kill()
        return self.cluster.promote_synchronous()

    def snapshot(self) -> float:
        """While all rows are read again."""
        self.captured.ask("snapshot", tables=list(self.captured.tables))
        self.published.await_commit(time.time() + self.chance.uniform(0.0, 0.5))
        return self.kill()

    def twice(self) -> float:
        """The promoted standby is killed as soon as the other one receives from it."""
        self.kill()
        self.cluster.primary.kill()
        return self.cluster.promote_synchronous()

    def failback(self) -> float:
        """Back to a server that was the primary before."""
        began = self.switch()
        self.published.await_commit(began)
        self.cluster.restore(former_is_synchronous=True)
        self.cluster.ready()
        return self.switch()

    def backlog(self) -> float:
        """While capture is down, behind many small transactions that it has not received."""
        self.captured.running().kill()
        with psycopg.connect(self.captured.superuser_dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute(BACKLOG)
            connection.execute("CALL backlog(%s)", (BACKLOG_COUNT,))
        began = self.switch()
        self.captured.start(is_forked=False)
        return began

    def behind(self) -> float:
        """A standby that lacks what was published in the last seconds: a gap, which is healed."""
        self.cluster.detach_asynchronous()
        self.published.await_commit(time.time() + self.chance.uniform(1.0, 3.0))
        capture = self.captured.running()
        gaps = capture.said().count("never happened here")
        self.cluster.primary.kill()
        self.cluster.synchronous.kill()
        began = self.cluster.promote_asynchronous()
        eventually(lambda: capture.said().count("never happened here") > gaps, 60.0, capture.said)
        assert self.captured.ask("heal").is_accepted
        return began

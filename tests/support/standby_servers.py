"""A PostgreSQL primary and its standbys, made by `pg_basebackup`, on ports that stay theirs: what a connection
string with several hosts names. For tests that promote."""

import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

from tests.support.waiting import eventually
from watershed.devstack import postgres as programs
from watershed.devstack.instance import HOST, PortClaims, ServerInstance, choose_ports, unprivileged_account
from watershed.devstack.postgres import DATABASE, ROLE, SUPERUSER, Postgres
from watershed.devstack.server import base_environment

ACTIVE: LiteralString = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"


@dataclass
class PgServer:
    """One server, primary or standby."""

    instance: ServerInstance
    process: subprocess.Popen[bytes] | None = None
    version: int = 18

    @property
    def port(self) -> int:
        return self.instance.ports["postgres"]

    @property
    def data(self) -> Path:
        return self.instance.folder / f"data-{self.version}"

    @property
    def physical_slot(self) -> str:
        """That a standby in this place has on its primary."""
        return f"at_{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        command = Postgres(self.version).prepare(self.instance)
        with command.log.open("ab") as log:
            self.process = subprocess.Popen(
                command.argv, cwd=command.cwd, env=dict(command.env), stdout=log, stderr=log, **self._account()
            )
        eventually(self._answers, 30.0, lambda: f"a server starts:\n{command.log.read_text()[-2000:]}")

    def _answers(self) -> bool:
        try:
            self.query("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """As a power cut would, but that nothing written is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A fast shutdown: standbys and logical walsenders get all that was written."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(60)
        self.process = None

    def promote(self) -> None:
        """Returns when it is a primary. The questions may be cancelled, by what the standby still replays. None waits
        on the server: its snapshot would stop the replay, and thereby the promotion, for max_standby_streaming_delay
        (30 s) where log that removes row versions is still to be replayed."""

        def says(question: LiteralString) -> bool:
            with suppress(psycopg.errors.SerializationFailure):
                return bool(self.query(question)[0][0])
            return False

        eventually(lambda: says("SELECT pg_promote(wait => false)"), 60.0, "the standby is asked")
        eventually(lambda: says("SELECT NOT pg_is_in_recovery()"), 60.0, "the standby is promoted")

    def make_standby_of(self, primary: "PgServer", application: str = "") -> None:
        """Copies the primary, into this place, and starts. Whatever was here is gone."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        slot: LiteralString = "FROM pg_replication_slots WHERE slot_name = %s"
        eventually(lambda: not primary.query(f"SELECT 1 {slot} AND active", self.physical_slot), 30.0, "a free slot")
        primary.query(f"SELECT pg_drop_replication_slot(slot_name) {slot}", self.physical_slot)
        address = f"host={HOST} port={primary.port} user={SUPERUSER} dbname={DATABASE} application_name={application}"
        words: list[str | Path] = [
            "-D",
            self.data,
            "-R",
            "-C",
            "-S",
            self.physical_slot,
            "-X",
            "stream",
            "-c",
            "fast",
            "-d",
            address,
        ]
        self.run("pg_basebackup", "--no-sync", *words, version=18)  # it copies older servers too
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("hot_standby_feedback = on\nsynchronous_standby_names = ''\n")
            if self.version >= 17:
                settings.write("sync_replication_slots = on\nsynchronized_standby_slots = ''\n")
            else:  # which does not know all options that the program has written for it
                settings.write(f"primary_conninfo = '{address}'\n")
        self.start()

    def programs(self) -> Path:
        """The folder of this version's programs."""
        return programs._programs(self.instance, self.version)

    def run(self, tool: str, *words: str | Path, version: int | None = None) -> str:
        """Runs one of PostgreSQL's programs, of the server's version or another one, as the server's account; what it
        said."""
        self.instance.own()
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(word) for word in (programs._programs(self.instance, version or self.version) / tool, *words)],
            env=base_environment(self.instance.folder),
            cwd=self.instance.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._account(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def set(self, **settings: str) -> None:
        """ALTER SYSTEM, and a reload."""
        for name, value in settings.items():
            self.query(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        self.query("SELECT pg_reload_conf()")

    def query(self, statement: LiteralString | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
        """By the superuser, in the captured database."""
        address = f"host={HOST} port={self.port} user={SUPERUSER} dbname={DATABASE} connect_timeout=5"
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def _account(self) -> dict[str, Any]:
        uid = self.instance.unprivileged
        return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


@dataclass
class StandbyServers:
    """`servers[0]` is the primary at first; the tests promote."""

    servers: list[PgServer]

    def dsn(self, user: str = ROLE) -> str:
        """All servers, in their order."""
        hosts = ",".join(f"{HOST}:{server.port}" for server in self.servers)
        return f"postgresql://{user}@{hosts}/{DATABASE}?target_session_attrs=primary&connect_timeout=5"

    def await_synchronised(self, slot: str, on: Sequence[PgServer], deadline_s: float = 60.0) -> None:
        """The slot would survive a promotion of these."""
        for standby in on:
            eventually(
                lambda standby=standby: self._is_synchronised(standby, slot),  # type: ignore[misc]
                deadline_s,
                lambda standby=standby: (
                    f"slot {slot} is synchronised: {standby.query('SELECT * FROM pg_replication_slots')}"
                ),  # type: ignore[misc]
            )

    def _is_synchronised(self, standby: PgServer, slot: str) -> bool:
        for server in self.servers:
            if server.process is not None and server.query("SELECT pg_is_in_recovery()") == [(False,)]:
                server.query("SELECT pg_log_standby_snapshot()")  # slots move only where something is written
        return standby.query(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary", slot
        ) == [(1,)]


class Writer:
    """Inserts, updates and deletes rows of a table `items (id, name)`, through whichever server is the primary. No two
    changes write the same name."""

    def __init__(self, dsn: str, changes_per_s: float = 300.0) -> None:
        """`changes_per_s`: at most; a slower server is not caught up with."""
        self._dsn = dsn
        self._interval_s = 1.0 / changes_per_s
        self._is_over = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0
        self.connected_at = 0.0  # when the last connection had written something, seconds since 1970

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written meanwhile."""
        with self._writing:
            yield

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    due = time.monotonic()
                    with self._writing:
                        self._write(connection)
                    self.connected_at = time.time()
                    while not self._is_over.wait(max(due - time.monotonic(), 0.0)):
                        with self._writing:
                            self._write(connection)
                        due = max(due + self._interval_s, time.monotonic() - 0.1)
            except psycopg.OperationalError:
                self._is_over.wait(0.05)

    def _write(self, connection: psycopg.Connection) -> None:
        count, number = self.count, 1_000 + self.count % 400
        self.count += 1  # even if it fails: it may be committed all the same
        if count % 7 == 6:
            connection.execute("DELETE FROM items WHERE id = %s", (number - 3,))
        else:
            connection.execute(
                "INSERT INTO items VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                (number, str(count)),
            )


@contextmanager
def standby_servers(count: int = 2, version: int = 18) -> Iterator[StandbyServers]:
    """`count` servers: a primary, and its standbys, which have no part in commits."""
    with servers_of([version] * count) as servers:
        servers[0].start()
        for standby in servers[1:]:
            standby.make_standby_of(servers[0])
        yield StandbyServers(servers)


@contextmanager
def servers_of(versions: Sequence[int]) -> Iterator[list[PgServer]]:
    """A server of each of these versions, not started. Whatever runs at the end, ends."""
    folder = Path(tempfile.mkdtemp(prefix="watershed-standbys-", dir="/var/tmp"))
    folder.chmod(0o711)
    with PortClaims() as claims:
        servers = [
            PgServer(
                ServerInstance(
                    folder / f"pg{number}", {"postgres": port}, f"pg{number}", unprivileged_account(), folder
                ),
                version=version,
            )
            for number, (port, version) in enumerate(zip(choose_ports(len(versions), claims), versions, strict=True))
        ]
        for server in servers:
            server.instance.own()
        try:
            yield servers
        finally:
            for server in servers:
                server.kill()
            shutil.rmtree(folder, ignore_errors=True)

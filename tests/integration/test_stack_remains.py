"""What a killed server leaves behind keeps none from starting."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.support.waiting import eventually
from watershed.devstack.processes import Process, identify, runs, within
from watershed.devstack.stack import Stack

pytestmark = pytest.mark.whole


@pytest.fixture
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="watershed-test-") as name:
        Path(name).chmod(0o711)
        with Stack(Path(name), given={}) as stack:
            stack.start("postgres")
            yield stack
            stack.stop()
            stack.erase()
            Path(name).mkdir(exist_ok=True)


def work_for_minutes(dsn: str) -> Process:
    """A session that does not look up from its work, as one that a killed server leaves."""
    connection = psycopg.connect(dsn)

    def work() -> None:
        with suppress(psycopg.Error):
            connection.execute("SELECT count(*) FROM generate_series(1, 20000000000)")

    threading.Thread(target=work, daemon=True).start()
    with psycopg.connect(dsn) as other:
        pid = connection.info.backend_pid
        asked = "SELECT state FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: other.execute(asked, [pid]).fetchone() == ("active",))
    process = identify(pid)
    assert process is not None
    return process


def test_a_session_that_outlives_its_killed_server_is_ended(stack: Stack) -> None:
    """PostgreSQL refuses to start as long as one holds the earlier server's shared memory."""
    dsn = stack.endpoints.dsn
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
    session = work_for_minutes(dsn)
    server = identify(stack.pid("postgres"))
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not runs(server))
    stack.start("postgres")
    assert not runs(session)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT id FROM kept").fetchone() == (1,)


def test_the_pid_in_a_lock_file_may_be_another_process_by_now(stack: Stack) -> None:
    data = Path(f"/proc/{stack.pid('postgres')}/cwd").readlink()
    stack.kill("postgres")
    lock_file = data / "postmaster.pid"
    lines = lock_file.read_text().split("\n")
    lock_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    stack.start("postgres")
    assert stack.pid("postgres") in {process.pid for process in within(data)}

"""The development stack on real servers: what a kill leaves, what an end leaves, what goes wrong with a sentence."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis as redis_client
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from opensearchpy import OpenSearch
from opensearchpy.helpers import bulk

from cdc.model.errors import StackError
from spark_jobs.jars.resolver import default_cache
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.waiting import eventually
from watershed.devstack import startup_recorder
from watershed.devstack.endpoints import SERVICES, ServerStack
from watershed.devstack.instance import HOST
from watershed.devstack.kafka import Kafka
from watershed.devstack.processes import Process, runs
from watershed.devstack.stack import Stack
from watershed.devstack.state import read_state, take_lock

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[2]
GONE_S = 20.0
ROWS = 1000
STARTED = ("postgres", "kafka", "redis")  # by the commands; OpenSearch's start is the longest, and differs in nothing

# An owner: starts the services that its arguments name, says so, and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from watershed.devstack.stack import Stack
stack = Stack(Path(sys.argv[1]), temporary=sys.argv[2] == "temporary", given={})
stack.start(*sys.argv[3:])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a stack of the test's own. Whatever the test leaves running there is stopped."""
    with tempfile.TemporaryDirectory(prefix="watershed-test-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path
        if path.exists():
            stack = Stack(path, detached=True, given={})
            stack.stop()
            stack.erase()
            path.mkdir()


def own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WATERSHED_")} | {
        "PYTHONPATH": str(PROJECT)
    }


def start_owner(folder: Path, kind: str, *services: str) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), kind, *services],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=own_environment(),
    )
    assert owner.stdout and owner.stdout.readline() == "ready\n"
    return owner


def cdc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "watershed", *arguments],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=own_environment(),
        check=False,
    )


def servers_of(folder: Path) -> dict[str, Process]:
    state = read_state(folder)
    return state.servers if state else {}


def mentions(folder: Path) -> list[str]:
    """Command lines of processes that name the folder: servers, tools, whatever was left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


class TestServers:
    def test_postgres_18_decodes_and_loses_no_acknowledged_commit(self, fresh_database: str) -> None:
        names = ("server_version_num", "wal_level", "synchronous_commit", "fsync", "server_encoding")
        with psycopg.connect(fresh_database) as connection:
            rows = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(names)])
            settings: dict[str, str] = dict(rows.fetchall())
        assert settings.pop("server_version_num").startswith("18")
        assert settings == {
            "wal_level": "logical",
            "synchronous_commit": "on",
            "fsync": "off",
            "server_encoding": "UTF8",
        }

    def test_postgres_16_is_there_too(self, fresh_database16: str) -> None:
        with psycopg.connect(fresh_database16) as connection:
            assert connection.info.server_version // 10000 == 16

    def test_the_usual_role_is_no_superuser_but_may_replicate(self, fresh_database: str) -> None:
        with psycopg.connect(fresh_database) as connection:
            role = connection.execute("SELECT rolsuper, rolreplication FROM pg_roles WHERE rolname = current_user")
            assert role.fetchone() == (False, True)

    def test_a_fresh_database_goes_with_its_slots_even_if_one_is_being_read(self, postgres: PostgresServer) -> None:
        with new_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"{name}_idle"])
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"{name}_read"])
            connection.execute("CREATE PUBLICATION everything")
            reader = psycopg.connect(dsn, autocommit=True, replication="database")
            options = "(proto_version '1', publication_names 'everything')"
            reader.pgconn.send_query(f"START_REPLICATION SLOT {name}_read LOGICAL 0/0 {options}".encode())

            def is_active() -> bool:
                query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
                return connection.execute(query, [f"{name}_read"]).fetchall() == [(True,)]

            eventually(is_active, 10, "the slot is being read")
        with psycopg.connect(postgres.superuser_dsn) as connection:
            left = connection.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ %s", [f"^{name}"])
            assert left.fetchall() == []
            assert connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchall() == []
        reader.close()

    def test_kafka_is_one_broker_that_makes_no_topics_by_itself(self, kafka: KafkaBroker, unique: str) -> None:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        metadata = admin.list_topics(topic=unique, timeout=10)
        assert len(metadata.brokers) == 1
        assert metadata.topics[unique].error is not None

    def test_opensearch_analyses_every_language_that_it_ships(self, opensearch: str, unique: str) -> None:
        """The Java runtime from the wheel lacks locales: without ICU's no index can be created at all."""
        with OpenSearch(opensearch) as client:
            assert client.info()["version"]["number"] == "3.8.0"
            client.indices.create(index=unique, body={"mappings": {"properties": {"t": {"type": "text"}}}})
            tokens = client.indices.analyze(body={"analyzer": "thai", "text": "ภาษาไทย"})["tokens"]
            assert [token["token"] for token in tokens] == ["ภาษา", "ไทย"]

    def test_redis_runs_scripts(self, redis: str) -> None:
        with redis_client.Redis.from_url(redis) as client:
            assert client.info("server")["redis_version"].startswith("6.2")
            assert client.eval("return 40 + 2", 0) == 42


class TestKillAndRestart:
    """Same address, same data: everything that was acknowledged before SIGKILL."""

    def test_postgres(self, stack: ServerStack, fresh_database: str) -> None:
        with psycopg.connect(fresh_database, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
            for number in range(100):
                connection.execute("INSERT INTO t VALUES (%s)", [number])
        stack.kill("postgres")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(fresh_database)
        stack.restart("postgres")
        with psycopg.connect(fresh_database) as connection:
            assert connection.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (100, 0, 99)
            slots = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = current_database()")
            assert slots.fetchall() == [(1,)]

    def test_kafka(self, stack: ServerStack, kafka: KafkaBroker, unique: str) -> None:
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(15)
        producer = Producer(servers | {"transactional.id": unique})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(ROWS):
            producer.produce(unique, str(number).encode())
        producer.commit_transaction(30)
        stack.kill("kafka")
        stack.restart("kafka")
        consumer = Consumer(
            servers | {"group.id": unique, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        )
        consumer.subscribe([unique])
        values: list[bytes | None] = []

        def all_read() -> bool:
            values.extend(message.value() for message in consumer.consume(ROWS, 1.0) if not message.error())
            return len(values) >= ROWS

        eventually(all_read, 90.0, lambda: f"{ROWS} records are read; {len(values)} are")
        consumer.close()
        assert values == [str(number).encode() for number in range(ROWS)]

    def test_opensearch(self, stack: ServerStack, opensearch: str, unique: str) -> None:
        with OpenSearch(opensearch) as client:
            client.indices.create(index=unique, body={"settings": {"number_of_replicas": 0}})
            assert bulk(client, [{"_index": unique, "_id": n, "n": n} for n in range(ROWS)]) == (ROWS, [])
        stack.kill("opensearch")
        stack.restart("opensearch")
        with OpenSearch(opensearch) as client:
            client.indices.refresh(index=unique)
            assert client.count(index=unique)["count"] == ROWS
            assert client.get(index=unique, id="123")["_source"] == {"n": 123}

    def test_redis(self, stack: ServerStack, redis: str, unique: str) -> None:
        with redis_client.Redis.from_url(redis) as client:
            for number in range(ROWS):
                client.set(f"{unique}:{number}", number)
        stack.kill("redis")
        stack.restart("redis")
        with redis_client.Redis.from_url(redis) as client:
            assert client.mget([f"{unique}:{n}" for n in range(ROWS)]) == [str(n).encode() for n in range(ROWS)]


class TestEndOfTheOwner:
    def test_all_servers_end_when_their_owner_is_killed(self, folder: Path) -> None:
        owner = start_owner(folder, "temporary", *SERVICES)
        servers = servers_of(folder)
        assert sorted(servers) == sorted(SERVICES)
        assert all(map(runs, servers.values()))
        owner.kill()
        owner.wait()
        eventually(lambda: not any(map(runs, servers.values())), GONE_S, "the servers of a killed owner end")
        eventually(lambda: not mentions(folder), GONE_S, lambda: f"nothing is left: {mentions(folder)}")
        eventually(lambda: not folder.exists(), GONE_S, "the temporary folder is deleted")

    def test_a_process_that_the_owner_forked_does_not_keep_them_alive(self, folder: Path) -> None:
        """It has a copy of the pipe whose end the keeper waits for."""
        program = OWNER.replace('print("ready"', 'import os; os.fork() or sys.stdin.read(); print("ready"', 1)
        owner = subprocess.Popen(
            [sys.executable, "-c", program, str(folder), "kept", "redis"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=own_environment(),
        )
        assert owner.stdout and owner.stdout.readline() == "ready\n"
        server = servers_of(folder)["redis"]
        owner.kill()
        owner.wait()
        eventually(lambda: not runs(server), GONE_S, "redis ends though a fork of its owner lives")
        assert owner.stdin
        owner.stdin.close()  # ends the fork

    def test_servers_end_when_their_keeper_is_killed_and_the_owner_is_told(self, folder: Path) -> None:
        with Stack(folder, given={}) as stack:
            stack.start("redis")
            server = servers_of(folder)["redis"]
            keeper = int((Path("/proc") / str(server.pid) / "stat").read_text().rpartition(")")[2].split()[1])
            os.kill(keeper, signal.SIGKILL)
            eventually(lambda: not runs(server), GONE_S, "redis ends with its keeper")
            assert [s.state for s in stack.status() if s.service == "redis"] == ["died"]
            with pytest.raises(StackError, match="parent process of the stack's servers has ended"):
                stack.restart("redis")

    def test_a_folder_is_free_for_the_next_owner_once_the_servers_have_ended(self, folder: Path) -> None:
        owner = start_owner(folder, "kept", "postgres")
        server = servers_of(folder)["postgres"]
        owner.kill()
        owner.wait()
        with Stack(folder, given={}) as stack:
            endpoints = stack.start("postgres")
            assert not runs(server)
            with psycopg.connect(endpoints.dsn) as connection:
                assert connection.info.dbname == "watershed"

    def test_two_owners_of_one_folder_are_one_too_many(self, folder: Path) -> None:
        owner = start_owner(folder, "kept", "redis")
        with pytest.raises(StackError, match=f"process {owner.pid} is using the stack"):
            take_lock(folder, 0.2)
        owner.communicate("")
        assert mentions(folder) == []


class TestCommands:
    def test_up_status_down(self, folder: Path) -> None:
        up = cdc("stack", "up", *STARTED, "--folder", str(folder))
        assert up.returncode == 0, up.stderr
        servers = servers_of(folder)
        assert all(map(runs, servers.values()))
        status = cdc("stack", "status", "--json", "--folder", str(folder))
        assert status.returncode == 0
        reported = {server["service"]: server for server in json.loads(status.stdout)["servers"]}
        assert {name: reported[name]["pid"] for name in STARTED} == {n: p.pid for n, p in servers.items()}
        with psycopg.connect(reported["postgres"]["address"]) as connection:
            connection.execute("CREATE TABLE kept (id int)")
        superuser = reported["postgres"]["superuser"]
        assert f"PostgreSQL's superuser: {superuser}" in up.stdout
        with psycopg.connect(superuser) as connection:
            assert connection.execute("SHOW is_superuser").fetchone() == ("on",)
        with pytest.raises(StackError, match="`cdc stack up` run in"):
            Stack(folder, given={}).start("redis")

        os.kill(servers["redis"].pid, signal.SIGKILL)
        eventually(lambda: not runs(servers["redis"]), GONE_S, "redis ends")
        status = cdc("stack", "status", "--folder", str(folder))
        assert (status.returncode, "died" in status.stdout) == (1, True)
        again = cdc("stack", "up", *STARTED, "--folder", str(folder))
        assert again.returncode == 0, again.stderr
        now = servers_of(folder)
        assert [name for name in STARTED if now[name] != servers[name]] == ["redis"]
        assert reported["redis"]["address"] in again.stdout

        down = cdc("stack", "down", "--folder", str(folder))
        assert (down.returncode, down.stderr) == (0, "")
        assert mentions(folder) == []
        assert cdc("stack", "up", "postgres", "--folder", str(folder)).returncode == 0
        with psycopg.connect(reported["postgres"]["address"]) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        assert cdc("stack", "down", "--erase", "--folder", str(folder)).returncode == 0
        assert not folder.exists()

    @pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
    def test_an_up_that_is_ended_half_way_leaves_nothing(
        self, folder: Path, number: signal.Signals, exit_code: int
    ) -> None:
        up = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "watershed",
                "stack",
                "up",
                "postgres",
                "redis",
                "kafka",
                "--folder",
                str(folder),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=PROJECT,
            env=own_environment(),
        )
        eventually(lambda: "kafka" in servers_of(folder), 60, "kafka's process is there, and not ready yet")
        servers = servers_of(folder)
        up.send_signal(number)
        assert up.wait(30) == exit_code
        eventually(lambda: not any(map(runs, servers.values())), GONE_S, "what had started ends")
        eventually(lambda: not mentions(folder), GONE_S, lambda: f"nothing is left: {mentions(folder)}")

    def test_down_leaves_a_stranger_alone_that_has_a_server_s_pid(self, folder: Path) -> None:
        with subprocess.Popen(["sleep", "60"]) as stranger:
            assert cdc("stack", "up", "redis", "--folder", str(folder)).returncode == 0
            state = read_state(folder)
            assert state
            redis = state.servers["redis"]
            state.servers["redis"] = Process(stranger.pid, redis.started)
            state.write(folder)
            assert cdc("stack", "down", "--folder", str(folder)).returncode == 0
            assert stranger.poll() is None
            stranger.kill()
            os.kill(redis.pid, signal.SIGKILL)


def test_a_start_uses_the_startup_cache(folder: Path) -> None:
    """Made here, if `make setup` has not made it."""
    assert startup_recorder.make(Kafka(), default_cache())
    with Stack(folder, given={}) as stack:
        stack.start("kafka")
        maps = (Path("/proc") / str(stack.pid("kafka")) / "maps").read_text()
    assert re.search(r"/kafka-[0-9a-f]{16}\.aot$", maps, re.MULTILINE)


class TestTrouble:
    def test_a_port_that_was_taken_meanwhile_is_named(self, folder: Path) -> None:
        stack = Stack(folder, given={})
        stack.start("redis")
        port = int(stack.endpoints.redis_url.rpartition(":")[2].partition("/")[0])
        stack.stop()
        with socket.create_server((HOST, port)):
            with pytest.raises(StackError, match=f"port {port}, which belongs to Redis in this stack, is used"):
                stack.start("redis")
            stack.stop()
        stack.start("redis")
        assert stack.endpoints.redis_url.endswith(f":{port}/0")
        stack.stop()

    def test_a_server_that_dies_while_it_starts_is_told_with_its_log(self, folder: Path) -> None:
        with Stack(folder, given={}) as stack:
            stack.start("redis")
            stack.kill("redis")
            (folder / "redis" / "data" / "appendonly.aof").write_text("this is no log of Redis\n")
            with pytest.raises(StackError) as caught:
                stack.start("redis")
        assert "Redis ended while it started (exit code 1)" in caught.value.message
        assert "Bad file format reading the append only file" in caught.value.hint

    def test_one_failure_stops_what_was_started_with_it(self, folder: Path) -> None:
        with Stack(folder, given={}) as stack:
            stack.start("redis")
            stack.kill("redis")
            (folder / "redis" / "data" / "appendonly.aof").write_text("this is no log of Redis\n")
            with pytest.raises(StackError, match="Redis ended"):
                stack.start("redis", "postgres")
            assert [server.state for server in stack.status()] == ["stopped"] * 4

    def test_a_folder_that_only_we_can_enter_is_no_obstacle(self, folder: Path) -> None:
        """Root's servers run under another account, which can't: they get a home elsewhere, and it goes with them."""
        folder.chmod(0o700)
        umask = os.umask(0o077)
        try:
            stack = Stack(folder / "stack", temporary=True, given={})
            endpoints = stack.start("postgres")
        finally:
            os.umask(umask)
        with stack:
            with psycopg.connect(endpoints.dsn) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            homes = [server.log.parent for server in stack.status() if server.log]
            assert len(homes) == 1
        assert not any(home.exists() for home in homes)

    def test_what_is_given_is_used_and_never_touched(self, folder: Path) -> None:
        given = {"redis": "redis://elsewhere:6379/0"}
        with Stack(folder, given=given) as stack:
            endpoints = stack.start("redis")
            assert endpoints.redis_url == given["redis"]
            for forbidden in (stack.kill, stack.restart):
                with pytest.raises(StackError, match="named by WATERSHED_REDIS"):
                    forbidden("redis")

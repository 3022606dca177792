"""Real servers for the tests: each is started when the first test asks for it, and ends with the test run."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import structlog
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support.waiting import eventually
from watershed.devstack.endpoints import ServerStack, given_addresses
from watershed.devstack.stack import open_stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # most tests need no Spark, and importing it takes a second

    from tests.support.redis_cluster import Cluster

SLOT_RELEASE_S = 30.0
# Batches of tests are small: generating Java for each plan, compiling it and warming it up takes a seventh of the JVM's
# processor time. The demo's test runs Spark as users do.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@dataclass(frozen=True)
class PostgresServer:
    """A server of the test run. Tests take a database of their own from `fresh_database`."""

    dsn: str  # role `watershed`: may replicate and create databases, is no superuser
    superuser_dsn: str
    stack: ServerStack  # to kill and restart `postgres`


@dataclass(frozen=True)
class KafkaBroker:
    """Shared by all tests: names of topics, groups and transactional ids must be the test's own."""

    bootstrap_servers: str
    stack: ServerStack


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """What a process of the run takes as a whole."""
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests; but all that share a Spark session, which costs much to start and is warm only after a while."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        is_warehouse = "[warehouse" in nodeid or file.startswith("tests/conformance/test_warehouse_")
        is_conformance = file.startswith("tests/conformance/")  # elsewhere a file's cases share its fixtures
        return "spark" if (is_conformance and is_warehouse) or file.startswith("tests/unit/spark_jobs/") else file


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A command that a test ran in this process has set logging to a stream that is closed by now."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def expected_refusal(request: pytest.FixtureRequest) -> str:
    """The message with which the case's combination is refused, as docs/reference/compatibility.md quotes it."""
    messages: list[str] = [
        marker.kwargs["refused"] for marker in request.node.iter_markers("combination") if "refused" in marker.kwargs
    ]
    [message] = messages
    return message


@pytest.fixture(scope="session")
def stack() -> Iterator[ServerStack]:
    """The test run's servers. Fault tests call `stack.kill(...)` and `stack.restart(...)`."""
    with _temporary_stack() as made:
        yield made


@pytest.fixture(scope="session")
def postgres(stack: ServerStack) -> PostgresServer:
    """PostgreSQL 18."""
    endpoints = stack.start("postgres")
    return PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    """PostgreSQL 16, beside the other. Always our own: the environment names one server."""
    with _temporary_stack(postgres_version=16, without_given="postgres") as made:
        endpoints = made.start("postgres")
        yield PostgresServer(endpoints.dsn, endpoints.superuser_dsn, made)


@pytest.fixture(scope="session")
def postgres15() -> Iterator[PostgresServer]:
    """PostgreSQL 15, for tests that know it to be installed (watershed.devstack.postgres.is_installed)."""
    with _temporary_stack(postgres_version=15, without_given="postgres") as made:
        endpoints = made.start("postgres")
        yield PostgresServer(endpoints.dsn, endpoints.superuser_dsn, made)


@pytest.fixture(scope="session")
def postgres17() -> Iterator[PostgresServer]:
    """PostgreSQL 17, for tests that know it to be installed."""
    with _temporary_stack(postgres_version=17, without_given="postgres") as made:
        endpoints = made.start("postgres")
        yield PostgresServer(endpoints.dsn, endpoints.superuser_dsn, made)


@pytest.fixture
def fresh_database(postgres: PostgresServer) -> Iterator[str]:
    """DSN of an empty database that the role `watershed` owns. Dropped at the end, with its slots."""
    with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture
def fresh_database16(postgres16: PostgresServer) -> Iterator[str]:
    """The same on PostgreSQL 16."""
    with new_database(postgres16) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def kafka(stack: ServerStack) -> KafkaBroker:
    return KafkaBroker(stack.start("kafka").bootstrap_servers, stack)


@pytest.fixture(scope="session")
def opensearch(stack: ServerStack) -> str:
    """URL. Shared by all tests: names of indices must be the test's own."""
    return stack.start("opensearch").opensearch_url


@pytest.fixture(scope="session")
def redis(stack: ServerStack) -> str:
    """URL. Shared by all tests: keys must be the test's own."""
    return stack.start("redis").redis_url


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """Three nodes without replicas. Shared by all tests: keys must be the test's own."""
    from tests.support.redis_cluster import redis_cluster

    with redis_cluster(tmp_path_factory.mktemp("redis-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A session with the warehouse's jars. Starting a JVM takes seconds, so all tests share one; what they set, they
    set on a `newSession()`."""
    from spark_jobs.class_archive import JAR_SETS
    from spark_jobs.jars.java import spark_java
    from spark_jobs.jars.resolver import resolve_sets
    from spark_jobs.session import spark_session

    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    session = spark_session(spark_java(), jars, "1g", options=INTERPRETED)
    yield session
    session.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test or earlier run has: lower case, a valid slot, topic prefix, index and key."""
    return f"t{secrets.token_hex(5)}"


def superuser_dsn_of(server: PostgresServer, dsn: str) -> str:
    """The superuser's way into the database of `dsn`."""
    return make_conninfo(server.superuser_dsn, dbname=conninfo_to_dict(dsn)["dbname"])


@contextmanager
def new_database(server: PostgresServer) -> Iterator[str]:
    """For tests that need several. Yields the DSN."""
    name = f"t{secrets.token_hex(5)}"
    owner = str(conninfo_to_dict(server.dsn)["user"])
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(owner)))
    try:
        yield make_conninfo(server.dsn, dbname=name)
    finally:
        drop_database(server, name)


def drop_database(server: PostgresServer, name: str) -> None:
    """With its replication slots, whoever still reads from them."""
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:

        def slots_are_gone() -> bool:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [name]
            ).fetchall()
            for slot, active_pid in slots:
                if active_pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s)", [active_pid])
                else:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            return not slots

        eventually(slots_are_gone, SLOT_RELEASE_S, f"the slots of database {name} are dropped")
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def _temporary_stack(postgres_version: int = 18, without_given: str | None = None) -> Iterator[ServerStack]:
    given = {service: address for service, address in given_addresses().items() if service != without_given}
    folder = Path(tempfile.mkdtemp(prefix="watershed-test-"))
    folder.chmod(0o711)  # PostgreSQL and OpenSearch may run under another account than ours
    try:
        with open_stack(folder, postgres_version=postgres_version, temporary=True, given=given) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)

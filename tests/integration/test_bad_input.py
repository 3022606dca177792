"""What can't work says so: one clear error with the next step, no traceback, and nothing written before it."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import PostgresServer
from tests.support.captured import Captured
from tests.support.topics import create_topic
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

pytestmark = pytest.mark.whole

SECRET = "correct-horse-battery"


@pytest.fixture
def role(items: Captured, unique: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"{unique}_role"
    items.query(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    yield name
    items.query(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    items.query(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def written(captured: Captured) -> tuple[Any, ...]:
    """All that capture could have written."""
    return (
        captured.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"),
        captured.query("SELECT pubname, xmin FROM pg_publication"),
        sorted(captured.topics()),
    )


def refusal(captured: Captured, exit_code: int = 1) -> str:
    """What `cdc run` says when it refuses to start, having written nothing."""
    before = written(captured)
    ended = captured.run_once()
    assert ended.returncode == exit_code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("error: ") == 1
    assert "\n  next: " in ended.stderr
    assert SECRET not in ended.stderr
    assert written(captured) == before
    return " ".join(ended.stderr.split())


# ---- the connection


@pytest.mark.parametrize(
    ("dsn", "exit_code", "expected"),
    [
        (f"postgresql://me:{SECRET}@[db/shop", 2, "source.dsn is not a PostgreSQL connection string"),
        (f"host=db password={SECRET} no_such_option=1", 2, "source.dsn is not a PostgreSQL connection string"),
        (f"host=db password={SECRET} connect_timeout=soon", 2, "source.dsn: bad value for connect_timeout: 'soon'"),
        (f"postgresql://me:{SECRET}@nowhere.invalid/shop", 3, "can't connect to PostgreSQL"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/shop", 3, "check source.dsn and that the server runs"),
    ],
    ids=["syntax", "option", "value", "host", "port"],
)
def test_a_dsn_that_leads_nowhere(items: Captured, dsn: str, exit_code: int, expected: str) -> None:
    items.settings = {"source": {"dsn": dsn}}
    assert expected in refusal(items, exit_code)


def test_a_database_that_does_not_exist(items: Captured) -> None:
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, dbname="no_such", password=SECRET)}}
    assert 'database "no_such" does not exist next: correct database and user in source.dsn' in refusal(items)


def test_a_role_that_does_not_exist(items: Captured) -> None:
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user="no_such", password=SECRET)}}
    assert 'role "no_such" does not exist next: correct database and user in source.dsn' in refusal(items)


def test_a_role_that_may_not_replicate(items: Captured, role: str) -> None:
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=role)}}
    items.query("CREATE PUBLICATION watershed FOR TABLE items")
    items.query(sql.SQL("GRANT SELECT ON items TO {}").format(sql.Identifier(role)))
    message = refusal(items)
    assert "the role may not replicate" in message
    assert "ALTER ROLE <role> REPLICATION" in message


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """A server of its own: wal_level is not logical, and one role needs a password."""
    with own_server() as (server, stack):
        with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE locked LOGIN REPLICATION PASSWORD {}").format(sql.Literal(SECRET)))
            rules = Path(connection.execute("SHOW hba_file").fetchall()[0][0])
        rules.write_text("host all locked all scram-sha-256\n" + rules.read_text("utf-8"), encoding="utf-8")
        with started_again(stack, server.superuser_dsn, "-c", "wal_level=replica"):
            yield server


@contextmanager
def own_server() -> Iterator[tuple[PostgresServer, Stack]]:
    folder = Path(tempfile.mkdtemp(prefix="watershed-test-"))
    folder.chmod(0o711)
    try:
        with Stack(folder, temporary=True, given={}) as stack:
            endpoints = stack.start("postgres")
            yield PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack), stack
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started_again(stack: Stack, dsn: str, *options: str) -> Iterator[None]:
    """The stack's PostgreSQL with more options: the last ones count."""
    process = Path("/proc", str(stack.pid("postgres")))
    command = [word.decode() for word in (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")]
    environment = dict(line.decode().split("=", 1) for line in (process / "environ").read_bytes().split(b"\0") if line)
    folder, owner = (process / "cwd").readlink(), process.stat()
    stack.kill("postgres")
    other = None if owner.st_uid == os.geteuid() else owner  # PostgreSQL refuses to run as root
    with subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=environment,
        stderr=subprocess.DEVNULL,
        user=other and other.st_uid,
        group=other and other.st_gid,
        extra_groups=None if other is None else [],
    ) as server:
        try:
            eventually(lambda: answers(dsn))
            yield
        finally:
            server.send_signal(signal.SIGINT)


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_server_without_logical_decoding(items: Captured, strict_server: PostgresServer) -> None:
    items.settings = {"source": {"dsn": strict_server.dsn}}
    message = refusal(items)
    assert "wal_level is replica, not logical" in message
    assert "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL" in message


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_wrong_password(items: Captured, strict_server: PostgresServer, password: str | None) -> None:
    items.settings = {"source": {"dsn": make_conninfo(strict_server.dsn, user="locked", password=password)}}
    assert "next: correct the user in source.dsn, and the password in PGPASSWORD, ~/.pgpass or source.dsn" in refusal(
        items
    )


def test_a_server_without_a_free_slot(items: Captured) -> None:
    with own_server() as (server, stack), started_again(stack, server.superuser_dsn, "-c", "max_replication_slots=1"):
        with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
            connection.execute("SELECT pg_create_physical_replication_slot('others')")
        items.settings = {"source": {"dsn": server.superuser_dsn}}
        message = refusal(items)
        assert f"all 1 replication slots of the server are in use, so {items.name} can't be created" in message


# ---- tables and publication


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DROP TABLE items", "table public.items does not exist next: correct source.tables"),
        ("ALTER TABLE items DROP CONSTRAINT items_pkey", "table public.items has no key"),
        ("ALTER TABLE items REPLICA IDENTITY NOTHING", "table public.items has no key"),
        (
            "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id) DEFERRABLE, REPLICA IDENTITY FULL",
            "table public.items has no key",
        ),
        ("ALTER TABLE items SET UNLOGGED", "table public.items is unlogged"),
        ("ALTER TABLE items RENAME TO i; CREATE VIEW items AS SELECT * FROM i", "public.items is not a table"),
        (
            "CREATE PUBLICATION watershed FOR TABLE items WITH (publish = 'insert, update')",
            "publication watershed leaves out some operations",
        ),
        (
            "ALTER TABLE items REPLICA IDENTITY FULL; CREATE PUBLICATION watershed FOR TABLE items (name)",
            "key column id of table public.items is not published",
        ),
        (
            "ALTER TABLE items ADD more int GENERATED ALWAYS AS (id + 1), REPLICA IDENTITY FULL",
            "a generated column that is not published, more: PostgreSQL would reject updates and deletes",
        ),
    ],
    ids=["missing", "no key", "nothing", "deferrable", "unlogged", "view", "operations", "columns", "generated"],
)
def test_a_table_that_can_not_be_captured(items: Captured, statement: LiteralString, expected: str) -> None:
    with items.connect() as connection:
        connection.execute(statement)
    assert expected in refusal(items)


def test_a_name_in_sqls_quotes_is_told_how_it_is_written(items: Captured) -> None:
    with items.connect() as connection:
        connection.execute('CREATE TABLE "a""b" (id int PRIMARY KEY)')
    items.settings = {"source": {"tables": ['public."a""b"']}}
    message = refusal(items)
    assert 'table public."a""b" does not exist' in message
    assert 'takes names of tables without the quotes of SQL: write public.a"b' in message
    items.settings = {"source": {"tables": ['public.a"b']}}
    items.cdc("check")


def test_a_table_that_the_publication_of_somebody_else_lacks(items: Captured) -> None:
    """One that the role may alter takes it in."""
    items.query("CREATE PUBLICATION watershed FOR TABLE other")
    message = refusal(items)
    assert "publication watershed does not contain table public.items" in message
    assert 'ALTER PUBLICATION "watershed" ADD TABLE ONLY "public"."items"' in message


def test_a_partition_beside_its_root(items: Captured) -> None:
    """The publication that it makes shows the root only."""
    with items.connect() as connection:
        connection.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY LIST (id)")
        connection.execute("CREATE TABLE leaf PARTITION OF root DEFAULT")
    items.settings = {"source": {"tables": ["public.items", "public.root", "public.leaf"]}}
    ended = items.run_once()
    assert ended.returncode == 1
    assert "publishes rows of table public.leaf as those of its partitioned root" in ended.stderr
    with items.connect() as connection:
        connection.execute("ALTER PUBLICATION watershed SET (publish_via_partition_root = false)")
    items.settings = {"source": {"tables": ["public.items", "public.root"]}}
    assert "publishes rows of table public.root as those of its partitions" in items.run_once("check").stderr


def test_a_publication_that_the_role_may_not_create(items: Captured, role: str) -> None:
    items.query(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=role)}}
    message = refusal(items)  # which may not read the table either
    assert "publication watershed does not exist and the role may not create it" in message
    assert 'CREATE PUBLICATION "watershed" FOR TABLE ONLY "public"."items"' in message


def test_a_table_that_the_role_may_not_read(items: Captured, role: str) -> None:
    items.query(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    items.query("CREATE PUBLICATION watershed FOR TABLE items")
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=role)}}
    assert "the role may not read table public.items" in refusal(items)


def test_the_next_step_for_a_table_with_an_unusual_name_can_be_run(items: Captured, role: str) -> None:
    items.query(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    items.query('CREATE TABLE "Odd.Items" (id int PRIMARY KEY)')
    items.query('CREATE PUBLICATION watershed FOR TABLE "Odd.Items"')
    items.settings = {"source": {"tables": ["public.Odd.Items"], "dsn": make_conninfo(items.dsn, user=role)}}
    assert 'GRANT SELECT ON public."Odd.Items" TO <role>' in refusal(items)


def test_an_owner_who_may_not_create_in_the_database(items: Captured, role: str) -> None:
    """A publication is the database's: that the tables are the role's own is not enough."""
    items.query(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    with psycopg.connect(items.superuser_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER TABLE items OWNER TO {}").format(sql.Identifier(role)))
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=role)}}
    assert "creating it also requires CREATE on database" in refusal(items)


def test_a_partition_with_another_replica_identity_than_its_root(items: Captured) -> None:
    with items.connect() as connection:
        connection.execute("CREATE TABLE parted (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (100)")
        connection.execute("ALTER TABLE parted REPLICA IDENTITY FULL")
    items.settings = {"source": {"tables": ["public.parted"]}}
    message = refusal(items)
    assert "partition public.low has another replica identity than its root public.parted" in message
    assert "ALTER TABLE public.low REPLICA IDENTITY" in message


def test_logical_messages_that_the_role_may_not_write(items: Captured) -> None:
    for (signature,) in items.query(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
    ):
        items.query(sql.SQL(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{signature} FROM PUBLIC").format())
    message = refusal(items)
    assert "the role may not write logical messages" in message
    assert "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean,text,text,boolean) TO" in message


def test_a_table_whose_rows_are_hidden_from_the_role(items: Captured, role: str) -> None:
    """COPY would show no rows, while the log shows all."""
    items.query(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    items.query(sql.SQL("GRANT SELECT ON items TO {}").format(sql.Identifier(role)))
    items.query("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    items.query("CREATE PUBLICATION watershed FOR TABLE items")
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=role)}}
    assert "row security hides rows of table public.items from the role" in refusal(items)


def test_a_slot_that_is_not_ours(items: Captured) -> None:
    items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", items.name)
    message = refusal(items)
    assert f"slot {items.name} exists, but the topics of prefix {items.name} hold no position for it" in message
    assert "choose another source.slot" in message


# ---- configuration and Kafka


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kafka": {"bootstrap": "x"}}, "kafka.bootstrap: unknown key"),
        ({"sinc": {}}, "sinc: unknown key"),
        ({"source": {"tables": []}}, "source.tables"),
    ],
)
def test_a_configuration_with_mistakes(items: Captured, settings: dict[str, Any], expected: str) -> None:
    items.settings = settings
    assert expected in refusal(items, exit_code=2)


@pytest.mark.parametrize("name", ["CDC__KAFKA__BOOTSTRAP", "CDC__SURCE__DSN", "CDC__SOURCE__TABLES"])
def test_an_override_with_mistakes(items: Captured, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    refusal(items, exit_code=2)


def test_brokers_that_do_not_answer(items: Captured) -> None:
    items.settings = {"kafka": {"bootstrap_servers": "127.0.0.1:1"}}
    message = refusal(items, 3)
    assert "no broker answers at 127.0.0.1:1" in message
    assert "check kafka.bootstrap_servers" in message


@pytest.mark.parametrize("topic", ["public.items", "state", "control", "progress"])
def test_a_topic_that_exists_and_is_not_compacted(items: Captured, topic: str) -> None:
    name = f"{items.name}.{topic}"
    create_topic(items.bootstrap_servers, name, "delete")
    message = refusal(items)
    assert f"topic {name} exists with cleanup.policy=delete, not compact" in message
    assert "next: choose another topics.prefix, if another program uses the topic; otherwise set cleanup" in message


@pytest.mark.parametrize("topic", ["state", "control", "progress", "signals"])
def test_a_topic_of_ours_that_exists_with_several_partitions(items: Captured, topic: str) -> None:
    """Made by hand, or by brokers that create topics for who asks. Capture reads its own from the first partition:
    with four it streamed, and never saw that there were rows to be read, or signals."""
    name = f"{items.name}.{topic}"
    create_topic(items.bootstrap_servers, name, "delete" if topic == "signals" else "compact", partitions=4)
    message = refusal(items)
    assert f"topic {name} exists with 4 partitions, but capture requires one" in message
    assert f"next: choose another topics.prefix: {name} may be another program's" in message


def check_refuses(items: Captured) -> str:
    """What `cdc check` says, having written nothing."""
    before = written(items)
    ended = items.run_once("check")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "\n  next: " in ended.stderr
    assert written(items) == before
    return " ".join(ended.stderr.split())


def test_check_finds_a_slot_that_is_somebodys(items: Captured) -> None:
    """A start refuses it, so a check that calls the source fit would be wrong."""
    items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", items.name)
    reported = f"slot {items.name} exists, but the topics of prefix {items.name} hold no position for it"
    assert reported in check_refuses(items)
    assert reported in refusal(items)


def test_check_finds_what_a_start_calls_a_gap(items: Captured) -> None:
    capture = items.start()
    capture.await_said("streaming")
    assert items.run_once("check").returncode == 0  # beside a capture that streams
    capture.terminate()
    items.settings = {"source": {"slot": f"{items.name}_other"}}
    assert f"were written from slot {items.name}, not {items.name}_other" in check_refuses(items)
    items.settings = {}
    with items.connect() as connection:
        connection.execute("DROP PUBLICATION watershed")
        connection.execute("CREATE PUBLICATION watershed FOR TABLE items WITH (publish_via_partition_root)")
    assert "recreated" in check_refuses(items)
    items.query("SELECT pg_drop_replication_slot(%s)", items.name)
    message = check_refuses(items)
    assert f"slot {items.name} is gone" in message
    assert "cdc snapshot heal" in message


def test_more_replicas_than_brokers(items: Captured) -> None:
    items.settings = {"topics": {"prefix": items.name, "replication_factor": 3}}
    message = refusal(items)
    assert f"can't create topic {items.name}." in message
    assert "set topics.replication_factor to at most the number of brokers" in message


def test_an_interrupted_load_drops_only_its_own_slot(items: Captured) -> None:
    """The slot that the configuration names now may be anybody's."""
    items.query("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 100) AS n")
    items.settings = {"snapshot": {"method": "consistent"}}
    killed = items.start(failpoint="load.rows-produced")
    killed.await_end()
    others = f"{items.name}_others"
    items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", others)
    items.settings = {"source": {"slot": others}}
    assert f"through slot {items.name}, the configuration names" in refusal(items)
    items.settings = {}
    items.start().await_said("streaming")
    items.await_caught_up()
    assert items.judge().epoch == 2

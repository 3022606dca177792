"""`cdc check` finds each of these broken set-ups, and what it prints mends it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from tests.conftest import PostgresServer, drop_database
from tests.support.captured import Captured
from tests.support.checked import configured, execute, findings, set_in_kafka, sql_of, the_one, troubles
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole


@pytest.fixture
def role(items: Captured, unique: str) -> Iterator[str]:
    """A role that may replicate and read; the configuration names it."""
    name = sql.Identifier(f"{unique}_role")
    items.query(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(name))
    items.query(sql.SQL("GRANT SELECT ON items, other TO {}").format(name))
    items.query("CREATE PUBLICATION watershed FOR TABLE items")
    items.settings = {"source": {"dsn": make_conninfo(items.dsn, user=f"{unique}_role")}}
    yield f"{unique}_role"
    items.query(sql.SQL("DROP OWNED BY {}").format(name))
    items.query(sql.SQL("DROP ROLE {}").format(name))


@dataclass(frozen=True)
class Broken:
    """A set-up: how it is broken, where that is found and what is said; what the reader of the fix fills in."""

    breaks: str
    about: str
    says: str
    fills: tuple[tuple[str, str], ...] = ()


BROKEN = {
    "a table without a key": Broken(
        "ALTER TABLE items DROP CONSTRAINT items_pkey",
        "table public.items",
        "has no key",
        (("(…)", "(id)"),),
    ),
    "a table that may not be read": Broken(
        "REVOKE SELECT ON items FROM {role}", "table public.items", "may not read table public.items"
    ),
    "a role that may not replicate": Broken("ALTER ROLE {role} NOREPLICATION", "source", "the role may not replicate"),
    "a publication without deletes": Broken(
        "ALTER PUBLICATION watershed SET (publish = 'insert, update')",
        "table public.items",
        "leaves out some operations",
    ),
    "a publication without the table": Broken(
        "ALTER PUBLICATION watershed SET TABLE other", "table public.items", "does not contain table"
    ),
    "no publication, and a role that may not create it": Broken(
        "DROP PUBLICATION watershed", "publication watershed", "the role may not create it"
    ),
    "a role that may not write logical messages": Broken(
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog FROM PUBLIC; "
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog TO PUBLIC; "
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(bool, text, text, bool) FROM PUBLIC",
        "source",
        "may not write logical messages",
    ),
    "a replica identity that is nothing": Broken(
        "ALTER TABLE items REPLICA IDENTITY NOTHING", "table public.items", "does not cover its primary key"
    ),
    "a role that may not log in": Broken("ALTER ROLE {role} NOLOGIN", "source", "is not permitted to log in"),
    "row level security": Broken(
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY", "table public.items", "row security hides rows"
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_is_broken_in_the_source_is_found_and_mended(items: Captured, role: str, name: str) -> None:
    assert troubles(items) == []
    broken = BROKEN[name]
    execute(items.superuser_dsn, broken.breaks.format(role=role, slot=items.name))
    (found,) = troubles(items)
    assert (found.about, found.level) == (broken.about.format(slot=items.name), "fail")
    assert broken.says in found.message
    step = found.next
    for placeholder, text in (("<role>", f'"{role}"'), *broken.fills):
        step = step.replace(placeholder, text)
    execute(items.superuser_dsn, sql_of(step))
    assert troubles(items) == []


def test_a_slot_without_a_position_is_answered_by_the_likely_cause_and_not_by_a_statement(items: Captured) -> None:
    """Seen: after a typing error in topics.prefix the remedy was pg_drop_replication_slot, which loses changes."""
    execute(items.superuser_dsn, f"SELECT pg_create_logical_replication_slot('{items.name}', 'pgoutput')")
    (found,) = troubles(items)
    assert (found.about, found.level) == ("history", "fail")
    assert "hold no position for it" in found.message
    assert found.next.startswith("check topics.prefix") and "pg_drop_replication_slot" not in found.next
    execute(items.superuser_dsn, f"SELECT pg_drop_replication_slot('{items.name}')")
    assert troubles(items) == []


def test_a_slot_that_is_physical_is_left_to_its_owner(items: Captured) -> None:
    execute(items.superuser_dsn, f"SELECT pg_create_physical_replication_slot('{items.name}')")
    (found,) = troubles(items)
    assert (found.about, "exists and is physical" in found.message) == (f"slot {items.name}", True)
    assert found.next.startswith("choose another name in source.slot")
    items.settings = {"source": {"slot": f"{items.name}_b"}}
    assert troubles(items) == []
    execute(items.superuser_dsn, f"SELECT pg_drop_replication_slot('{items.name}')")


@pytest.mark.usefixtures("role")
def test_a_missing_key_is_named_before_a_publication_that_lacks_the_table(items: Captured) -> None:
    """PostgreSQL would refuse the application's updates and deletes of a published table without a key."""
    execute(
        items.superuser_dsn, "ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER PUBLICATION watershed SET TABLE other"
    )
    (found,) = troubles(items)
    assert "has no key" in found.message


def test_a_key_without_an_index_is_found_and_mended(items: Captured) -> None:
    items.query("ALTER TABLE items DROP CONSTRAINT items_pkey, ALTER id SET NOT NULL, REPLICA IDENTITY FULL")
    items.keys = {"public.items": ["id"]}
    (found,) = troubles(items)
    assert (found.about, "can't be read in chunks" in found.message) == ("table public.items", True)
    execute(items.superuser_dsn, sql_of(found.next))
    assert troubles(items) == []


def test_a_partition_with_another_identity_is_found_and_mended(items: Captured) -> None:
    items.query("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    items.query("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    items.query("ALTER TABLE part REPLICA IDENTITY FULL")
    for table in ("parts", "part"):
        items.query(sql.SQL("ALTER TABLE {} OWNER TO watershed").format(sql.Identifier(table)))
    items.tables = ["public.parts"]
    (found,) = troubles(items)
    assert "has another replica identity than its root" in found.message
    execute(items.superuser_dsn, found.next.partition(", as")[0].replace("…", "DEFAULT"))
    assert troubles(items) == []


def test_wal_without_a_limit_is_a_warning_and_mended(items: Captured, postgres: PostgresServer) -> None:
    found = [one for one in findings(items)["source"] if one[0] == "warn"]
    assert ["until the disk is full" in message for _, message, _ in found] == [True]
    execute(items.superuser_dsn, found[0][2])
    try:
        eventually(lambda: not [one for one in findings(items)["source"] if one[0] == "warn"], 20.0, "it is set")
    finally:
        execute(items.superuser_dsn, "ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()")


def test_a_topic_with_several_partitions_is_found_and_mended(items: Captured) -> None:
    name = f"{items.name}.state"
    create_topic(items.bootstrap_servers, name, "compact", partitions=4)
    (found,) = troubles(items)
    assert (found.about, found.next.startswith("choose another topics.prefix")) == (f"topic {name}", True)
    assert "exists with 4 partitions" in found.message
    delete_topic(items.bootstrap_servers, name)
    assert troubles(items) == []


WELL = {"max_message_bytes": str(8 * 1024 * 1024), "delete_retention_ms": str(7 * 86_400_000)}
TOPICS: dict[str, tuple[dict[str, str], str, str]] = {
    "a topic that is not compacted": ({"policy": "delete"}, "fail", "not compact"),
    "a topic that accepts no record": ({"min_insync_replicas": "2"}, "fail", "min.insync.replicas is 2, and it has 1"),
    "a topic that forgets deletes early": ({"delete_retention_ms": "86400000"}, "warn", "keeps deletes for 7 days"),
    "a topic with a small limit": ({"max_message_bytes": "100000"}, "warn", "max.message.bytes is 100,000"),
}


@pytest.mark.parametrize("name", list(TOPICS))
def test_what_is_wrong_with_a_topic_is_found_and_mended(items: Captured, name: str) -> None:
    settings, level, says = TOPICS[name]
    topic = f"{items.name}.public.items"
    create_topic(items.bootstrap_servers, topic, partitions=4, **(WELL | settings))
    (found,) = troubles(items)
    assert (found.about, found.level, says in found.message) == (f"topic {topic}", level, True)
    set_in_kafka(items.bootstrap_servers, found.next)
    assert troubles(items) == []


def test_few_partitions_and_a_timeout_that_brokers_refuse_are_found_and_mended(items: Captured) -> None:
    topic = f"{items.name}.public.items"
    create_topic(items.bootstrap_servers, topic, partitions=2, **WELL)
    items.settings = {"kafka": {"options": {"transaction.timeout.ms": "3600000"}}}
    found = troubles(items)
    assert len(found) == 2
    wanted = the_one(found, "brokers", "capture's transaction.timeout.ms is 3600000, and the brokers'").next
    section, _, options = wanted.partition(": ")
    items.settings[section.partition(".")[0]]["options"] = json.loads(options)
    configured(items, the_one(found, f"topic {topic}", "it has 2 partitions, and topics.partitions is 4").next)
    assert troubles(items) == []


def test_a_slot_of_another_database_and_one_in_use_are_found_and_mended(items: Captured, role: str) -> None:
    elsewhere = make_conninfo(items.superuser_dsn, dbname="postgres")
    execute(elsewhere, f"SELECT pg_create_logical_replication_slot('{items.name}', 'pgoutput')")
    (found,) = troubles(items)
    assert (found.about, "belongs to database postgres" in found.message) == (f"slot {items.name}", True)
    assert found.next.startswith("correct the database in source.dsn if it is mistyped")
    execute(elsewhere, f"SELECT pg_drop_replication_slot('{items.name}')")
    assert troubles(items) == []

    items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", items.name)
    other = make_conninfo(items.dsn, user=role, replication="database", application_name="another")
    reader = pq.PGconn.connect(other.encode())
    stream = f"START_REPLICATION SLOT {items.name} LOGICAL 0/0 (proto_version '1', publication_names 'watershed')"
    assert reader.exec_(stream.encode()).status == pq.ExecStatus.COPY_BOTH
    (found,) = troubles(items)
    assert (found.about, "another program streams from it: another" in found.message) == (f"slot {items.name}", True)
    assert found.next.endswith("if it is a former consumer of yours, stop that one first")
    reader.finish()
    eventually(lambda: f"slot {items.name}" not in findings(items), 20.0, "nobody streams")


def test_a_lost_slot_is_found_and_healed(items: Captured) -> None:
    items.query("INSERT INTO items VALUES (1, 'a')")
    items.start()
    items.await_caught_up()
    streams = findings(items)[f"slot {items.name}"]
    assert [(level, "capture streams from it" in message) for level, message, _ in streams] == [("ok", True)]
    items.running().terminate()
    items.drop_slot()
    (found,) = troubles(items)
    assert (found.about, "cdc snapshot heal" in found.next) == ("history", True)
    items.start()
    items.cdc("snapshot", "heal")
    items.await_caught_up()
    assert troubles(items) == []


def test_a_database_without_an_encoding_is_a_warning(items: Captured, postgres: PostgresServer, unique: str) -> None:
    name = sql.Identifier(unique)
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        made = "CREATE DATABASE {} OWNER watershed TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
        connection.execute(sql.SQL(made).format(name))
    try:
        dsn = make_conninfo(items.dsn, dbname=unique)
        execute(dsn, "CREATE TABLE items (id int PRIMARY KEY, name text)")
        items.settings = {"source": {"dsn": dsn}}
        (found,) = troubles(items)
        assert (found.about, found.level) == ("source", "warn")
        assert "encoding SQL_ASCII" in found.message
        assert "ENCODING 'UTF8'" in found.next
        items.settings = {}
        assert troubles(items) == []
    finally:
        drop_database(postgres, unique)


CONFIGURED: dict[str, tuple[Callable[[Captured, Path], dict[str, Any]], str, str]] = {
    "more replicas than brokers": (
        lambda items, _: {"topics": {"prefix": items.name, "replication_factor": 3}},
        "brokers",
        "topics.replication_factor: 1",
    ),
    "brokers that are away": (
        lambda _, __: {"kafka": {"bootstrap_servers": "127.0.0.1:1"}},
        "brokers",
        "check kafka.bootstrap_servers",
    ),
    "a database that is not there": (
        lambda items, _: {"source": {"dsn": make_conninfo(items.dsn, dbname="nowhere")}},
        "source",
        "correct database and user in source.dsn",
    ),
    "a table that is not there": (
        lambda _, __: {"source": {"tables": ["public.items", "public.itmes"]}},
        "table public.itmes",
        "",
    ),
    "a column pattern that matches nothing": (
        lambda _, __: {"source": {"exclude_columns": ["public.items.nmae"]}},
        "columns",
        "",
    ),
    "a store that is away": (
        lambda _, __: {"sinks": {"cache": {"url": "redis://127.0.0.1:1/0"}}},
        "store cache",
        "",
    ),
    "a warehouse that can't be written": (
        lambda _, folder: {
            "sinks": {
                "warehouse": {
                    "catalog_uri": f"jdbc:sqlite:{folder}/watershed.yml/catalog.db",
                    "location": str(folder / "tables"),
                }
            }
        },
        "store warehouse",
        "mkdir -p",
    ),
}


@pytest.mark.parametrize("name", list(CONFIGURED))
def test_what_is_wrong_in_the_configuration_is_found_and_mended(items: Captured, tmp_path: Path, name: str) -> None:
    settings, about, step = CONFIGURED[name]
    items.settings = settings(items, tmp_path)
    found = [one for one in troubles(items) if one.level == "fail"]
    assert [one.about for one in found] == [about], found
    assert step in found[0].next
    items.settings = {}
    assert troubles(items) == []


def test_jars_that_are_not_there_are_a_warning(items: Captured, redis: str, tmp_path: Path) -> None:
    items.settings = {"sinks": {"cache": {"url": redis}}}
    found = findings(items, WATERSHED_CACHE=str(tmp_path / "cache"))
    assert found["Java"][0][0] == "ok"
    level, message, step = found["jars"][0]
    assert (level, step) == ("warn", "python -m spark_jobs.jars")
    assert "are not in the cache" in message
    assert findings(items)["jars"][0][0] == "ok"


def test_everything_is_found_at_once_and_printed_with_its_step(items: Captured) -> None:
    items.query("ALTER TABLE items DROP CONSTRAINT items_pkey")
    items.settings = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "source": {"tables": ["public.items", "public.none"]},
    }
    done = items.run_once("check")
    assert done.returncode == 1
    message = done.stderr
    assert message.count("fail ") == 3, message
    assert message.count("  next: ") == 3
    for about in ("table public.items", "table public.none", "brokers"):
        assert f"fail {about}: " in message
    assert done.stdout.splitlines()[-1].endswith(" 3 fail")

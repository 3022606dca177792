"""`cdc check` finds each of these broken set-ups, and what it prints mends it."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import PostgresServer
from tests.support.captured import Captured
from tests.support.forked import run
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import eventually

OWNER = "watershed"


def findings(items: Captured, **environment: str) -> dict[str, list[tuple[str, str, str]]]:
    """About → (level, message, next)."""
    done = run(["check", "--json", "--config", str(items.config())], deadline_s=120.0, environment=environment)
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in told["findings"]:
        found.setdefault(one["about"], []).append((one["level"], one["message"], one["next"]))
    has_failed = any(level == "fail" for many in found.values() for level, _, _ in many)
    assert (done.returncode, told["is_fit"]) == ((1, False) if has_failed else (0, True))
    return found


def troubles(items: Captured, **environment: str) -> list[tuple[str, str, str, str]]:
    """(about, level, message, next) of everything that is not well; that the test server has no limit for WAL aside."""
    return [
        (about, level, message, step)
        for about, many in findings(items, **environment).items()
        for level, message, step in many
        if level != "ok" and "max_slot_wal_keep_size is not set" not in message
    ]


def execute(items: Captured, statements: str) -> None:
    """As a superuser, each as it is printed."""
    with psycopg.connect(items.superuser_dsn, autocommit=True) as connection:
        for statement in filter(None, map(str.strip, re.sub(r"--.*", "", statements).split(";"))):
            connection.execute(statement.encode())


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
    "a slot that is somebody's": Broken(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", "history", "know nothing of it"
    ),
    "row level security": Broken(
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY", "table public.items", "row security hides rows"
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_is_broken_in_the_source_is_found_and_mended(items: Captured, role: str, name: str) -> None:
    assert troubles(items) == []
    broken = BROKEN[name]
    execute(items, broken.breaks.format(role=role, slot=items.name))
    found = troubles(items)
    assert [about for about, *_ in found] == [broken.about], found
    _, level, message, step = found[0]
    assert level == "fail"
    assert broken.says in message
    for placeholder, text in (("<role>", f'"{role}"'), *broken.fills):
        step = step.replace(placeholder, text)
    words = re.search(r"\b(ALTER|CREATE|GRANT|SELECT)\b.*", step)
    assert words is not None, step
    execute(items, re.split(r"; or |, or |; who ", words[0])[0])
    assert troubles(items) == []


def test_a_key_without_an_index_is_found_and_mended(items: Captured) -> None:
    items.query("ALTER TABLE items DROP CONSTRAINT items_pkey, ALTER id SET NOT NULL, REPLICA IDENTITY FULL")
    items.keys = {"public.items": ["id"]}
    ((about, _, message, step),) = troubles(items)
    assert (about, "can't be read in chunks" in message) == ("table public.items", True)
    execute(items, step.partition("; or")[0])
    assert troubles(items) == []


def test_a_partition_with_another_identity_is_found_and_mended(items: Captured) -> None:
    items.query("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    items.query("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    items.query("ALTER TABLE part REPLICA IDENTITY FULL")
    for table in ("parts", "part"):
        items.query(sql.SQL("ALTER TABLE {} OWNER TO watershed").format(sql.Identifier(table)))
    items.tables = ["public.parts"]
    ((_, _, message, step),) = troubles(items)
    assert "has another replica identity than its root" in message
    execute(items, step.partition(", as")[0].replace("…", "DEFAULT"))
    assert troubles(items) == []


def test_wal_without_a_limit_is_a_warning_and_mended(items: Captured, postgres: PostgresServer) -> None:
    found = [one for one in findings(items)["source"] if one[0] == "warn"]
    assert ["until the disk is full" in message for _, message, _ in found] == [True]
    execute(items, found[0][2])
    try:
        eventually(lambda: not [one for one in findings(items)["source"] if one[0] == "warn"], 20.0, "it is set")
    finally:
        execute(items, "ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()")


def test_a_topic_with_several_partitions_is_found_and_mended(items: Captured) -> None:
    name = f"{items.name}.state"
    create_topic(items.bootstrap_servers, name, "compact", partitions=4)
    ((about, _, message, step),) = troubles(items)
    assert about == f"topic {name}"
    assert "exists with 4 partitions" in message
    assert step.startswith(f"delete {name}")
    delete_topic(items.bootstrap_servers, name)
    assert troubles(items) == []


def test_a_topic_that_is_not_compacted_is_found(items: Captured) -> None:
    name = f"{items.name}.public.items"
    create_topic(items.bootstrap_servers, name, "delete", partitions=4)
    ((about, _, message, step),) = troubles(items)
    assert about == f"topic {name}"
    assert "not compact" in message
    assert f"cleanup.policy=compact on {name}" in step
    delete_topic(items.bootstrap_servers, name)
    assert troubles(items) == []


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
    found = [one for one in troubles(items) if one[1] == "fail"]
    assert [where for where, *_ in found] == [about], found
    assert step in found[0][3]
    assert found[0][3], "there is a next step"
    items.settings = {}
    assert troubles(items) == []


def test_jars_that_are_not_there_are_a_warning(items: Captured, redis: str, tmp_path: Path) -> None:
    items.settings = {"sinks": {"cache": {"url": redis}}}
    found = findings(items, WATERSHED_CACHE=str(tmp_path / "cache"))
    assert found["Java"][0][0] == "ok"
    level, message, step = found["jars"][0]
    assert (level, step) == ("warn", "python -m jars")
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
    said = done.stderr
    assert said.count("fail ") == 3, said
    assert said.count("  next: ") == 3
    for about in ("table public.items", "table public.none", "brokers"):
        assert f"fail {about}: " in said
    assert done.stdout.splitlines()[-1].endswith(" 3 fail")

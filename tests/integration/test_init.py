"""`cdc init` writes a configuration that works once its SQL is executed; `cdc teardown` leaves nothing behind."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.captured import Captured
from tests.support.forked import run
from tests.support.waiting import eventually

PASSWORD = "correct-horse-battery"


def cdc(*words: str) -> subprocess.CompletedProcess[str]:
    done = run(words, deadline_s=120.0)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def role(items: Captured, unique: str) -> Iterator[str]:
    name = f"{unique}_role"
    yield name
    items.query(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    items.query(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_its_sql_and_its_file_are_enough_for_capture(items: Captured, role: str, tmp_path: Path) -> None:
    items.query("CREATE TABLE keyless (a int)")
    items.query("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    items.query("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    file = tmp_path / "new.yml"
    dsn = make_conninfo(items.superuser_dsn, password=PASSWORD)
    names = ("--prefix", items.name, "--slot", items.name, "--role", role)
    where = ("--bootstrap-servers", items.bootstrap_servers)
    done = cdc("init", "--dsn", dsn, "--config", str(file), "--schema", "public", *names, *where)
    assert done.returncode == 0, done.stderr
    text = file.read_text(encoding="utf-8")
    assert PASSWORD not in text + done.stdout
    tables = yaml.safe_load(text)["source"]["tables"]
    assert {"public.items", "public.other", "public.parts"} <= set(tables)
    assert not {"public.part", "public.keyless"} & set(tables)
    assert "# - public.keyless  # it has no key" in text

    statements = re.findall(r"^  (?!ALTER SYSTEM|SELECT)(\S.*;)", done.stdout, re.MULTILINE)
    with psycopg.connect(items.superuser_dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
    assert conninfo_to_dict(yaml.safe_load(text)["source"]["dsn"])["user"] == role
    checked = cdc("check", "--json", "--config", str(file))
    found = json.loads(checked.stdout)["findings"]
    assert [one for one in found if one["level"] == "fail"] == []


def test_a_file_that_exists_is_not_overwritten(items: Captured, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("mine", encoding="utf-8")
    done = cdc("init", "--dsn", items.dsn, "--config", str(file))
    assert (done.returncode, file.read_text(encoding="utf-8")) == (2, "mine")
    assert "exists and is not overwritten" in done.stderr


def test_databases_of_which_nothing_can_be_captured_are_refused(items: Captured, tmp_path: Path) -> None:
    file = tmp_path / "new.yml"
    done = cdc("init", "--dsn", items.dsn, "--config", str(file), "--schema", "nowhere")
    assert (done.returncode, file.exists()) == (1, False)
    assert "schema nowhere has no table that can be captured" in done.stderr
    nowhere = make_conninfo(items.dsn, host="127.0.0.1", port=1)
    assert cdc("init", "--dsn", nowhere, "--config", str(file)).returncode == 3
    assert cdc("init", "--dsn", "postgresql://[", "--config", str(file)).returncode == 1


def left(items: Captured) -> tuple[int, int, set[str]]:
    """(slots, publications, topics)."""
    ((slots, publications),) = items.query(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),"
        " (SELECT count(*) FROM pg_publication)"
    )
    return slots, publications, items.topics()


def test_teardown_asks_removes_and_leaves_topics_unless_told(items: Captured) -> None:
    items.query("INSERT INTO items VALUES (1, 'a')")
    capture = items.start()
    items.await_caught_up()
    config = ("--config", str(items.config()))
    refused = cdc("teardown", "--yes", *config)
    assert refused.returncode == 1
    assert "is in use" in refused.stderr
    assert "stop every `cdc run`" in refused.stderr
    assert left(items)[:2] == (1, 1), "nothing is removed while somebody streams"
    capture.terminate()
    eventually(lambda: not items.query("SELECT FROM pg_replication_slots WHERE active"), 30.0, "nobody streams")

    assert cdc("teardown", *config).returncode == 1, "nobody answered the question"
    assert left(items)[:2] == (1, 1)
    assert cdc("teardown", "--json", *config).returncode == 2
    done = cdc("teardown", "--yes", *config)
    assert done.returncode == 0, done.stderr
    slots, publications, topics = left(items)
    assert (slots, publications, f"{items.name}.state" in topics) == (0, 0, True)

    again = cdc("teardown", "--yes", "--topics", "--json", *config)
    assert again.returncode == 0, again.stderr
    reported = json.loads(again.stdout)
    assert reported["is_complete"]
    assert [step["outcome"] for step in reported["steps"][:2]] == ["was not there", "was not there"]
    eventually(lambda: left(items)[2] == set(), 30.0, lambda: f"no topics; there are {left(items)[2]}")


def test_teardown_that_is_done_in_part_says_so(items: Captured, unique: str) -> None:
    """The role may drop the slot, and is not the publication's owner."""
    items.query("CREATE PUBLICATION watershed FOR TABLE items")
    items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", items.name)
    done = cdc("teardown", "--yes", "--config", str(items.config()))
    assert done.returncode == 6, done.stderr
    assert 'next: as its owner or a superuser: DROP PUBLICATION "watershed";' in done.stderr
    assert left(items)[:2] == (0, 1)


def test_the_role_of_the_test_server_is_no_superuser(items: Captured) -> None:
    assert conninfo_to_dict(items.dsn)["user"] == "watershed"

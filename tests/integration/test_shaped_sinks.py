"""Two caches and a warehouse of one source: mappings, a condition, rows that a store rejects, a mapping that changes.

The caches are read with a plain client.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, LiteralString

import pytest
import redis as redis_client
from psycopg import sql

from cdc.config.config_file import load_config
from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob, sink_record
from tests.support.waiting import eventually

pytestmark = [pytest.mark.whole, pytest.mark.long]

PEOPLE: Final = """
CREATE TABLE people (id bigint PRIMARY KEY, name text, status text NOT NULL, email text, born date);
"""
FILL: Final = """
INSERT INTO people
SELECT n, 'name ' || n, CASE WHEN n % 3 = 0 THEN 'active' ELSE 'away' END, n || '@example.org',
       CASE WHEN n IN (7, 8, 9) THEN 'infinity'::date ELSE date '2001-01-01' + n END
FROM generate_series(1, 200) AS n
"""
ACTIVE: Final = {"rename": {"name": "title"}, "exclude": ["email"], "where": "status = 'active'"}
DEADLINE_S: Final = 90.0


@pytest.fixture(scope="module")
def people(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("shaped")
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, PEOPLE, ["public.people"]) as made,
    ):
        made.settings = {
            "sinks": {
                "active": {"type": "cache", "url": redis, "mapping": {"public.people": ACTIVE}},
                "everyone": {"type": "cache", "url": redis, "key_prefix": f"{name}-all"},
                "facts": {
                    "type": "warehouse",
                    "catalog_uri": f"jdbc:sqlite:{folder}/warehouse/catalog.db",
                    "location": f"{folder}/warehouse/tables",
                },
            },
            "spark": {
                "checkpoint_location": str(folder / "checkpoints"),
                "warehouse_trigger_ms": 500,
                "options": INTERPRETED,
            },
        }
        made.query(FILL)
        made.start()
        yield made


def cached(prefix: str, redis: str) -> dict[int, dict[str, Any]]:
    """The documents of all live rows, by key."""
    with redis_client.Redis.from_url(redis, decode_responses=True) as client:
        beginning = f"{prefix}:public.people:"
        keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
        documents = {int(key.removeprefix(beginning)): client.hget(key, "doc") for key in keys}
    return {key: json.loads(str(document)) for key, document in documents.items() if document is not None}


def expected(people: Captured, columns: LiteralString, where: LiteralString) -> dict[int, dict[str, Any]]:
    statement = sql.SQL("SELECT id, to_jsonb(r) FROM (SELECT {} FROM people WHERE {}) AS r")
    return dict(people.query(statement.format(sql.SQL(columns), sql.SQL(where))))


def warehouse_ids(people: Captured) -> set[int]:
    folder = people.folder
    place = CatalogPlace(folder / "warehouse/catalog.db", (folder / "warehouse/tables").as_uri(), people.name)
    return {row.key["id"] for row in WarehouseReader(place).rows(TableId("public", "people"))}


def letters(people: Captured) -> dict[int, dict[str, Any]]:
    found = json.loads(people.cdc("dlq", "list", "--json"))["dead_letters"]
    assert {one["sink"] for one in found} <= {"facts"}
    return {one["key"]["id"]: one for one in found}


def becomes(look: Callable[[], Any], wanted: Any, what: str) -> None:
    seen: list[Any] = []

    def is_there() -> bool:
        seen[:] = [look()]
        return bool(seen[0] == wanted)

    eventually(is_there, DEADLINE_S, lambda: f"{what}: {seen}, expected {wanted}")


def test_sinks_hold_their_mappings_and_letters_close(people: Captured, redis: str) -> None:
    active = "id, name AS title, status, born"
    ids = {key for (key,) in people.query("SELECT id FROM people")}
    reported = json.loads(people.cdc("check", "--json"))["sinks"]
    assert (reported[0]["sink"], reported[0]["columns"]) == ("active", ["id", "title", "status", "born"])
    with SinkJob(people.config(), "active", "everyone", "facts") as job:
        becomes(lambda: cached(people.name, redis), expected(people, active, "status = 'active'"), "the condition")
        becomes(lambda: cached(f"{people.name}-all", redis), expected(people, "*", "true"), "every row")

        # Three rows that the warehouse can't hold: they are listed, all others are there.
        becomes(lambda: letters(people).keys() | set(), {7, 8, 9}, "dead letters")
        becomes(lambda: warehouse_ids(people), ids - {7, 8, 9}, "the warehouse's rows")
        found = letters(people)
        assert "column born" in found[7]["reason"] and found[7]["topic"] == f"{people.name}.public.people"
        assert found[7]["commit_lsn"] > 0 and found[7]["row"] is None
        becomes(lambda: getattr(job.record("facts"), "dead_letters", None), 3, "counted in the sink's record")

        # A row that stops meeting the condition leaves, and comes back.
        people.query("UPDATE people SET status = 'away' WHERE id = 3")
        people.query("UPDATE people SET status = 'active', name = 'new' WHERE id = 4")
        becomes(lambda: cached(people.name, redis), expected(people, active, "status = 'active'"), "the condition")
        people.query("UPDATE people SET status = 'active' WHERE id = 3")
        becomes(lambda: cached(people.name, redis), expected(people, active, "status = 'active'"), "the condition")

        # Replay brings the source's row of today. Its value is as it was: the store rejects it at a later version.
        reported = json.loads(people.cdc("dlq", "replay", "facts", "--table", "public.people", "--key", "7", "--json"))
        assert reported == {"sink": "facts", "replayed": {"public.people": 1}}
        eventually(lambda: letters(people)[7]["version"] > found[7]["version"], DEADLINE_S, "a later version of row 7")
        assert letters(people)[8] == found[8], "nothing else is published again"

        people.query("UPDATE people SET born = '2001-01-08' WHERE id = 7")
        people.query("DELETE FROM people WHERE id = 8")
        becomes(lambda: letters(people).keys() | set(), {9}, "a good version and a delete close letters")
        assert json.loads(people.cdc("dlq", "discard", "facts", "--all", "--json"))["discarded"] == 1
        becomes(lambda: getattr(job.record("facts"), "dead_letters", None), 0, "discarding is noticed")
        becomes(lambda: warehouse_ids(people), ids - {8, 9}, "the warehouse's rows")
        code, _ = job.terminate()
        assert (code, "Traceback" in job.said()) == (0, False), job.said()


def test_a_mapping_that_changed_fills_the_store_again(people: Captured, redis: str) -> None:
    """Also rows that had left the store come at the versions that they had; nothing keeps its old shape."""
    people.settings["sinks"]["active"]["mapping"]["public.people"] = {
        "include": ["status"],
        "constants": {"origin": "shop"},
        "where": "status <> 'active' AND id > 10",
    }
    path = people.config()
    before = sink_record(load_config(path), "active")
    assert before is not None
    with SinkJob(path, "active") as job:
        job.wait_said("mapping changed")
        eventually(lambda: getattr(job.record("active"), "generation", 0) > before.generation, DEADLINE_S, "generation")
        wanted = expected(people, "id, status, 'shop' AS origin", "status <> 'active' AND id > 10")
        becomes(lambda: cached(people.name, redis), wanted, "the mapping of today")
        job.terminate()
    # The same mapping again: nothing is filled again.
    with SinkJob(path, "active") as job:
        job.wait_said("sink starts")
        assert "mapping changed" not in job.said()
        job.terminate()


def test_a_mapping_that_does_not_fit_is_refused_and_changes_nothing(people: Captured, redis: str) -> None:
    people.settings["sinks"]["active"]["mapping"]["public.people"] = {"rename": {"nme": "x"}}
    before = cached(people.name, redis)
    assert before
    with SinkJob(people.config(), "active") as job:
        job.wait_said("sink stopped")
        assert "sink active: mapping of public.people: rename names column nme" in job.said()
        job.terminate()
    assert cached(people.name, redis) == before
    done = people.run_once("check")
    assert done.returncode == 1
    message = " ".join((done.stdout + done.stderr).split())
    assert "mapping of public.people: rename names column nme" in message

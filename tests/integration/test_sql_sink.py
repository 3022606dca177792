"""`cdc sink run` with an SQL store: a second database of the test server, read by a plain client."""

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import tuple_row

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

TABLES: Final = """
CREATE TABLE people (
    id bigint PRIMARY KEY, name text, email text, born date, score numeric(8,2), seen timestamptz,
    tags text[], attributes jsonb, photo bytea, note text
);
CREATE TABLE lines (a int, b text, primary key (a, b), weight double precision);
CREATE TABLE late (id uuid PRIMARY KEY, at time);
"""
FILL: Final = """
INSERT INTO people
SELECT n, 'name ' || n, n || '@example.org', CASE WHEN n = 4 THEN 'infinity' ELSE date '2001-01-01' + n END, n / 3.0,
       timestamptz '2026-01-01' + n * interval '1 h', ARRAY['x', NULL, 'y"' || n],
       jsonb_build_object('n', n, 'é', null),
       decode(md5(n::text), 'hex'), repeat('n', 10)
FROM generate_series(1, 200) AS n;
INSERT INTO lines SELECT n, n || ':', 'NaN' FROM generate_series(1, 20) AS n;
"""
DEADLINE_S: Final = 90.0


class Store:
    """The SQL database, by psycopg."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True, row_factory=tuple_row) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def columns(self, table: str) -> dict[str, str]:
        return dict(
            self.query(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            )
        )


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Captured, Store]]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("sql")
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(
            postgres, kafka, dsn, name, folder, TABLES, ["public.people", "public.lines", "public.late"]
        ) as made,
    ):
        made.settings = {
            "sinks": {
                "report": {
                    "type": "sql",
                    "url": url_of(target),
                    "mapping": {"public.people": {"rename": {"name": "title"}, "where": "id < 1000"}},
                    "shapes": {
                        "public.people": {
                            "table": "report.persons",
                            "types": {"email": "varchar(20)"},
                            "indexes": [["title", "born"]],
                        }
                    },
                },
            },
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL)
        made.start()
        yield made, Store(target)


PEOPLE: Final = "SELECT id, name AS title, email, born::text, score, seen, tags, attributes::text, photo FROM people"
PERSONS: Final = "SELECT id, title, email, born::text, score, seen, tags, attributes::text, photo FROM report.persons"


def equal(shop: tuple[Captured, Store], source: str, store: str) -> None:
    made, target = shop
    seen: list[Any] = []

    def is_equal() -> bool:
        try:
            seen[:] = target.query(f"SELECT to_jsonb(r)::text FROM ({store}) AS r ORDER BY 1")
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return False
        return bool(seen == made.query(f"SELECT to_jsonb(r)::text FROM ({source}) AS r ORDER BY 1"))

    eventually(is_equal, DEADLINE_S, lambda: f"{store}: {len(seen)} rows, such as {seen[:2]}")


def letters(made: Captured) -> list[Any]:
    found: list[Any] = json.loads(made.cdc("dlq", "list", "--json"))["dead_letters"]
    return found


@pytest.mark.combination("encodings", "json", "readable", "SQL")
def test_a_database_follows_the_source(shop: tuple[Captured, Store]) -> None:
    made, store = shop
    with SinkJob(made.config(), "report") as job:
        equal(shop, PEOPLE, PERSONS)
        equal(shop, "SELECT * FROM lines", "SELECT * FROM public.lines")
        assert store.columns("report.persons") == {
            "id": "bigint",
            "title": "text",
            "email": "character varying(20)",
            "born": "date",
            "score": "numeric(8,2)",
            "seen": "timestamp with time zone",
            "tags": "text[]",
            "attributes": "jsonb",
            "photo": "bytea",
            "note": "text",
        }
        indexed = store.query("SELECT indexdef FROM pg_indexes WHERE tablename = 'persons' ORDER BY indexname")
        assert [definition.partition(" USING ")[2] for (definition,) in indexed] == [
            "btree (id)",
            "btree (title, born)",
        ]

        # A row that the column's type refuses is a dead letter, until it fits.
        made.query("UPDATE people SET email = repeat('e', 30), name = 'long' WHERE id = 7")
        made.query("DELETE FROM people WHERE id BETWEEN 10 AND 19; UPDATE people SET id = 300 WHERE id = 20")
        made.query("UPDATE people SET id = 5000 WHERE id = 21; UPDATE lines SET a = -a WHERE a > 10")
        equal(shop, f"{PEOPLE} WHERE id <> 7 AND id < 1000", f"{PERSONS} WHERE id <> 7")
        eventually(lambda: len(letters(made)) == 1, DEADLINE_S, "one dead letter")
        (letter,) = letters(made)
        assert letter["key"] == {"id": 7}
        assert letter["reason"] == ("column email: its type varchar(20) refuses the value (StringDataRightTruncation)")
        made.query("UPDATE people SET email = 'short' WHERE id = 7")
        equal(shop, f"{PEOPLE} WHERE id < 1000", PERSONS)
        eventually(lambda: not letters(made), DEADLINE_S, "the letter is closed")

        # Columns come, go and change while the job runs.
        made.query(
            "ALTER TABLE people DISABLE TRIGGER USER, DROP COLUMN note, ADD COLUMN level int,"
            " ALTER COLUMN score TYPE numeric(12,4)"
        )
        made.query("UPDATE people SET level = id WHERE id % 2 = 0")
        made.query("INSERT INTO late VALUES (gen_random_uuid(), '12:30')")
        equal(
            shop, "SELECT id, level, score FROM people WHERE id < 1000", "SELECT id, level, score FROM report.persons"
        )
        equal(shop, "SELECT * FROM late", "SELECT * FROM public.late")
        columns = store.columns("report.persons")
        assert "note" not in columns and columns["score"] == "numeric(12,4)"
        made.query("TRUNCATE lines; INSERT INTO lines VALUES (1, 'after', -0.0)")
        equal(shop, "SELECT * FROM lines", "SELECT * FROM public.lines")
        job.kill()

    store.query("DROP TABLE report.persons")
    made.query("INSERT INTO people (id, name) VALUES (400, 'behind the kill')")
    with SinkJob(made.config(), "report") as job:
        equal(shop, "SELECT id, name FROM people WHERE id < 1000", "SELECT id, title AS name FROM report.persons")
        # Each type compares as what it is; a value that somebody changed is seen.
        store.query("UPDATE report.persons SET photo = NULL, email = 'not compared' WHERE id = 30")
        done = run(["verify", "--sink", "report", "--json", "--config", str(made.config())], deadline_s=60.0)
        tables = {table["table"]: table for table in json.loads(done.stdout)["tables"]}
        assert {name: (one["drift"], one["undecided"], one["not_compared"]) for name, one in tables.items()} == {
            "public.people": (1, 0, ""),
            "public.lines": (0, 0, ""),
            "public.late": (0, 0, ""),
        }
        (difference,) = tables["public.people"]["differences"]
        assert (difference["key"], [one["column"] for one in difference["columns"]]) == ('{"id":30}', ["photo"])
        code, _ = job.terminate()
        assert (code, "Traceback" in job.said()) == (0, False), job.said()


def test_check_names_the_tables_and_what_keeps_the_sink_from_making_them(shop: tuple[Captured, Store]) -> None:
    made, store = shop
    report = made.settings["sinks"]["report"]
    reported = json.loads(made.cdc("check", "--json"))
    assert "writes report.persons, public.lines, public.late" in json.dumps(reported["findings"])
    assert [one["table"] for one in reported["sinks"]] == ["public.people", "public.lines", "public.late"]
    store.query("CREATE SCHEMA IF NOT EXISTS foreigner; CREATE TABLE IF NOT EXISTS foreigner.rows (id int)")
    shapes = {
        "public.people": {"table": "foreigner.rows"},
        "public.lines": {"table": "one.name", "indexes": [["nme"]]},
        "public.late": {"table": "public.lines"},
    }
    message = [
        "foreigner.rows already exists",
        "SQL table of public.lines: indexes names column nme, which it does not have",
        "public.lines already exists, and the sink did not create it for this table",
    ]
    made.settings["sinks"]["report"] = report | {"shapes": shapes}
    done = made.run_once("check")
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1 and not [one for one in message if one not in output], output
    assert "Traceback" not in output

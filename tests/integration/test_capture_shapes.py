"""Tables and transactions of every shape that can be captured, on both versions, judged event by event."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest

from cdc.formats.cloud_events import OPERATIONS
from tests.checker.records import parse
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture

SCHEMA: LiteralString = """
CREATE TABLE parted (id int, region text, v text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
CREATE TABLE parted_rest PARTITION OF parted DEFAULT;

CREATE TABLE whole (id bigint PRIMARY KEY, small text, large text);
ALTER TABLE whole ALTER large SET STORAGE EXTERNAL;
ALTER TABLE whole REPLICA IDENTITY FULL;

CREATE TABLE indexed (code text NOT NULL, n int, v text);
CREATE UNIQUE INDEX indexed_code ON indexed (code) INCLUDE (n);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;

CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE typed (
  b numeric(10,2), gone text, a date, n positive, doubled int GENERATED ALWAYS AS (n * 2) STORED, many positive[],
  grid int[], span tstzrange, "select" interval, bits bit varying, net inet, t time, tz timetz, m money,
  PRIMARY KEY (a, b)
);
ALTER TABLE typed DROP COLUMN gone;

CREATE TABLE "UPPER" ("Id" int PRIMARY KEY);
"""
ATTRIBUTES: Final = ("specversion", "id", "source", "type", "time")
TABLES = ("public.parted", "public.whole", "public.indexed", "public.typed", "public.UPPER")


@pytest.fixture(params=["postgres", "postgres16"])
def captured(request: pytest.FixtureRequest, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Iterator[Captured]:
    server: PostgresServer = request.getfixturevalue(request.param)
    with (
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, unique, tmp_path, SCHEMA, TABLES) as made,
    ):
        yield made


def change_all(connection: psycopg.Connection, base: int) -> None:
    """Each statement is a transaction, but where one is opened."""
    execute = connection.execute
    # A row that moves to another partition is deleted and inserted, with another key or the same table's other half.
    execute(
        "INSERT INTO parted SELECT n, CASE n %% 2 WHEN 0 THEN 'eu' ELSE 'us' END, 'x'"
        "  FROM generate_series(%s::int, %s::int) AS n",
        (base, base + 20),
    )
    execute("UPDATE parted SET region = 'asia' WHERE id = %s", (base + 1,))
    execute("UPDATE parted SET region = 'us' WHERE id = %s", (base + 2,))
    execute("DELETE FROM parted WHERE id = %s", (base + 3,))
    # A large value that an update leaves alone is in the old row, under this replica identity.
    execute("INSERT INTO whole VALUES (%s, 'a', repeat('large ', 50000))", (base,))
    execute("UPDATE whole SET small = 'b' WHERE id = %s", (base,))
    execute("UPDATE whole SET id = -id WHERE id = %s", (base,))
    execute("INSERT INTO whole VALUES (%s, NULL, repeat('x', 1000000))", (base,))
    execute("INSERT INTO indexed VALUES ('k' || %s::text, 1, 'v')", (base,))
    execute("UPDATE indexed SET n = NULL, v = 'w' WHERE code = 'k' || %s::text", (base,))
    execute("UPDATE indexed SET code = code || '!' WHERE code = 'k' || %s::text", (base,))
    execute(
        'INSERT INTO typed (b, a, n, many, grid, span, "select", bits, net, t, tz, m) VALUES'
        " (%s, '2024-02-29', 7, '{1,NULL,3}', '{{1,2},{3,4}}', '[2024-01-01 00:00+02, infinity)',"
        " '1 year -3 days 04:05:06.789', '10110', '10.0.0.0/8', '24:00', '12:00:00.5+05:30', 12.5)",
        (base,),
    )
    execute("UPDATE typed SET grid = '[0:1]={5,6}', n = n + 1, m = NULL WHERE b = %s", (base,))
    execute("UPDATE typed SET b = b + 0.01 WHERE b = %s", (base,))
    execute('INSERT INTO "UPPER" VALUES (%s)', (base,))
    with connection.transaction():
        execute("SELECT pg_logical_emit_message(true, 'anybody', 'in the middle')")
        execute('INSERT INTO "UPPER" VALUES (%s)', (base + 1,))
        for number in range(60):
            with connection.transaction(force_rollback=number % 3 == 0):
                execute("INSERT INTO parted VALUES (%s, 'eu', 'savepoint')", (base + 100 + number,))
        execute(
            "INSERT INTO parted VALUES (%s, 'eu', 'again') ON CONFLICT (region, id) DO UPDATE SET v = 'met'",
            (base + 101,),
        )
    with connection.transaction(), connection.cursor().copy('COPY "UPPER" FROM STDIN') as copy:
        for number in range(1_000):
            copy.write_row((base + 10 + number,))
    execute(
        "MERGE INTO parted AS p USING (SELECT generate_series(%s::int, %s::int) AS id, 'eu' AS region) AS s"
        " ON p.id = s.id AND p.region = s.region"
        " WHEN MATCHED AND p.id %% 4 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged'"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.region, 'new')",
        (base, base + 40),
    )
    with connection.transaction():
        execute(
            "DO $$ BEGIN BEGIN INSERT INTO whole VALUES (-1); RAISE 'x'; EXCEPTION WHEN OTHERS THEN NULL; END; END $$"
        )
    # In two phases: other transactions commit between them.
    execute("BEGIN")
    execute('DELETE FROM "UPPER" WHERE "Id" = %s', (base + 10,))
    execute("PREPARE TRANSACTION 'first'")
    execute('DELETE FROM "UPPER" WHERE "Id" = %s', (base + 11,))
    execute("COMMIT PREPARED 'first'")


@pytest.mark.promise(1)
def test_every_shape_is_published_exactly_once(captured: Captured) -> None:
    with captured.connect() as connection:
        change_all(connection, 1_000)  # existing rows
        captured.settings = {"capture": {"transaction_rows_max": 300}}
        first = captured.start()
        first.await_said("streaming")
        change_all(connection, 5_000)
        first.kill()
        change_all(connection, 9_000)
        captured.settings |= {"format": {"extended.headers.enabled": True}}
        captured.start()
        captured.await_caught_up()
    report = captured.judge()
    assert min(report.ops[op] for op in "rcud") > 10
    named = [name for record in captured.records("public.UPPER") for name, _ in record.headers]
    assert "__debezium.context.connectorName" in named  # what section `format` says reaches the records


@pytest.mark.long
@pytest.mark.combination("encodings", "json, CloudEvents binary", "both", "capture")
@pytest.mark.combination("encodings", "json, CloudEvents structured", "both", "capture")
@pytest.mark.parametrize("profile", ["readable", "debezium"])
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_each_record_with_a_value_is_a_cloudevent_of_its_own(captured: Captured, mode: str, profile: str) -> None:
    captured.settings = {"format": {"cloudevents": mode, "profile": profile}}
    with captured.connect() as connection:
        change_all(connection, 1_000)  # existing rows
        captured.start().kill()
        captured.start()
        captured.await_caught_up()
        change_all(connection, 5_000)
        captured.await_caught_up()
        live = connection.execute('SELECT "Id" FROM "UPPER"').fetchall()
    if mode == "binary" and profile == "readable":
        captured.judge()
    rows: dict[bytes, Any] = {}
    events = set()
    for record in captured.records("public.UPPER"):
        headers = dict(record.headers)
        if record.value is None:
            assert "content-type" not in headers
            continue
        value = parse(record.value)
        event = value if mode == "structured" else {name: headers[f"ce_{name}"].decode() for name in ATTRIBUTES}
        events.add((event["source"], event["id"]))
        assert event["source"] == f"/watershed/{captured.name}/public.UPPER"
        data = value["data"] if mode == "structured" else value
        assert event["id"] == f"{data['source']['epoch']}.{data['source']['seq']}"
        assert event["type"] == f"watershed.{OPERATIONS[data['op']]}"
        rows[record.key] = data["after"]
    assert sorted(row["Id"] for row in rows.values() if row) == sorted(number for (number,) in live)
    assert len(events) == sum(record.value is not None for record in captured.records("public.UPPER"))


def test_a_schema_with_a_dot_in_its_name(items: Captured) -> None:
    items.query('CREATE SCHEMA "my.schema" CREATE TABLE "t.x" (id int PRIMARY KEY, name text)')
    items.query("""INSERT INTO "my.schema"."t.x" VALUES (1, 'before')""")
    items.tables = ['"my.schema".t.x']
    items.keys = {'"my.schema".t.x': ["id"]}
    refusal = items.run_once("check").stderr
    grants = 'GRANT USAGE ON SCHEMA "my.schema" TO {0}; GRANT SELECT ON "my.schema"."t.x" TO {0}'
    assert grants.format("<role>") in " ".join(refusal.split())
    items.query(grants.format("watershed"))
    items.query('ALTER TABLE "my.schema"."t.x" OWNER TO watershed')
    items.start()
    items.await_caught_up()
    items.query("""INSERT INTO "my.schema"."t.x" VALUES (2, 'after')""")
    items.await_caught_up()
    assert items.cdc("snapshot", "start", "--table", '"my.schema".t.x')
    items.await_caught_up()
    rows = [parse(record.value or b"") for record in items.records("my.schema.t.x")]
    assert [row["after"]["name"] for row in rows[:2]] == ["before", "after"]
    assert {(row["source"]["schema"], row["source"]["table"]) for row in rows} == {("my.schema", "t.x")}
    assert sorted(row["after"]["id"] for row in rows) == [1, 1, 2, 2]

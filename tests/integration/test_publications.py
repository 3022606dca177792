"""What is read of a publication, held against PostgreSQL's own view, which waits for locks on every table in it."""

from collections.abc import Iterator
from typing import Final, LiteralString

import psycopg
import pytest

from cdc.model.events import TableId
from cdc.postgres.catalog import read_publication
from tests.conftest import PostgresServer, new_database, superuser_dsn_of

TABLES: Final[LiteralString] = """
CREATE SCHEMA inner_one; CREATE SCHEMA "Other.One";
CREATE TABLE plain (id int PRIMARY KEY, name text, gone int, doubled int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE plain DROP gone;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE VIEW shown AS SELECT 1 AS id;
CREATE TABLE inner_one.plain (id int PRIMARY KEY, name text);
CREATE TABLE root (id int, region text, n int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE eu PARTITION OF root FOR VALUES IN ('eu') PARTITION BY RANGE (id);
CREATE TABLE inner_one.eu_low PARTITION OF eu FOR VALUES FROM (0) TO (10);
CREATE TABLE "Other.One"."Rest" PARTITION OF root DEFAULT;
"""
ASKED: Final = [
    *(TableId("public", name) for name in ("plain", "unlogged", "shown", "root", "eu", "none")),
    *(TableId("inner_one", name) for name in ("plain", "eu_low")),
    TableId("Other.One", "Rest"),
]
ROOTS: Final[LiteralString] = "publish_via_partition_root"


@pytest.fixture(scope="module", params=["postgres", "postgres16"])
def database(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    server: PostgresServer = request.getfixturevalue(request.param)
    with (
        new_database(server) as dsn,
        psycopg.connect(superuser_dsn_of(server, dsn), autocommit=True) as connection,
    ):
        connection.execute(TABLES)
        yield connection


@pytest.mark.parametrize("via_roots", ["true", "false"])
@pytest.mark.parametrize(
    "what",
    [
        "FOR ALL TABLES",
        "FOR TABLES IN SCHEMA inner_one",
        'FOR TABLES IN SCHEMA "Other.One", TABLE plain',
        "FOR TABLE root, plain (id), inner_one.plain WHERE (id > 7)",
        "FOR TABLE eu, plain WHERE (name > 'x'), inner_one.plain",
        "FOR TABLE inner_one.eu_low (id, region) WHERE (id > 7), root",
        "FOR TABLE eu, TABLES IN SCHEMA public, inner_one",
        "",
    ],
)
def test_a_publication_is_read_as_the_server_tells_it(
    database: psycopg.Connection, what: LiteralString, via_roots: LiteralString
) -> None:
    message = database.execute("SHOW server_version_num").fetchone()
    options: list[LiteralString] = ["", ", publish_generated_columns = stored"]
    for option in options[: 2 if message is not None and int(message[0]) >= 180_000 else 1]:
        statement: LiteralString = "CREATE PUBLICATION p " + what + " WITH (" + ROOTS + " = " + via_roots + option + ")"
        database.execute("BEGIN")
        database.execute(statement)
        view = database.execute(
            "SELECT schemaname::text, tablename::text, attnames::text[], rowfilter FROM pg_publication_tables"
        ).fetchall()
        found = read_publication(database, "p", ASKED, filters=ASKED)
        database.execute("ROLLBACK")
        assert found is not None
        assert found.columns == {TableId(schema, name): tuple(columns) for schema, name, columns, _ in view}
        assert found.row_filters == {TableId(schema, name): where for schema, name, _, where in view if where}


def test_nobody_who_has_locked_a_table_is_waited_for(database: psycopg.Connection) -> None:
    database.execute("CREATE PUBLICATION p FOR TABLE plain WHERE (id > 7), root WITH (" + ROOTS + ")")
    try:
        with psycopg.connect(database.info.dsn) as altering:
            altering.execute("LOCK TABLE plain, root IN ACCESS EXCLUSIVE MODE")
            database.execute("SET lock_timeout = '1s'")
            found = read_publication(database, "p", ASKED)
    finally:
        database.execute("DROP PUBLICATION p")
    assert found is not None
    assert found.columns.keys() == {TableId("public", "plain"), TableId("public", "root")}

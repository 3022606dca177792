"""Facts of tables as the catalog had them at one moment, also when a table is altered while they are read."""

from collections.abc import Iterator
from contextlib import closing
from typing import LiteralString

import psycopg
import pytest
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.model.events import TableId
from cdc.model.table_state import TableFacts
from cdc.model.topics import Topics
from cdc.ports.catalog_reader import CatalogAnswer, CatalogPoll, KnownTable
from cdc.postgres.catalog import read_publication, schema_of
from cdc.postgres.catalog_facts import read_facts
from cdc.postgres.catalog_poll import PostgresCatalogReader
from cdc.postgres.source import published_table
from cdc.tables.schema_changes import rows_changed
from tests.support.waiting import eventually

T = TableId("public", "things")

TABLE: LiteralString = "CREATE TABLE things (id int PRIMARY KEY, n int); INSERT INTO things VALUES (1, 1)"
PARTS: LiteralString = """
    CREATE TABLE things (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE middle PARTITION OF things FOR VALUES FROM (0) TO (20) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF middle FOR VALUES FROM (0) TO (10);
    CREATE TABLE other PARTITION OF things FOR VALUES FROM (20) TO (30);
    INSERT INTO things VALUES (1, 1), (21, 1)
"""


@pytest.fixture
def connection(fresh_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(fresh_database, autocommit=True) as made:
        yield made


@pytest.fixture
def poll(fresh_database: str) -> Iterator[psycopg.Connection]:
    """A connection on which the catalog is read, as of the first statement of each transaction."""
    with psycopg.connect(fresh_database) as made:
        made.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield made


def facts(connection: psycopg.Connection) -> TableFacts:
    return read_facts(connection, [T])[T]


@pytest.mark.promise(1)
@pytest.mark.parametrize(
    ("table", "change"),
    [
        (TABLE, "ALTER TABLE things ALTER n TYPE int USING n + 1000"),
        (TABLE, "ALTER TABLE things ADD b uuid DEFAULT gen_random_uuid()"),
        (PARTS, "ALTER TABLE things ALTER n TYPE int USING n + 1000"),
        (PARTS, "TRUNCATE leaf"),
        (PARTS, "ALTER TABLE middle DETACH PARTITION leaf"),
        (PARTS, "ALTER TABLE things DETACH PARTITION middle"),
    ],
)
def test_a_change_between_the_snapshot_and_the_query_is_noticed_by_the_next_poll(
    connection: psycopg.Connection, poll: psycopg.Connection, table: LiteralString, change: LiteralString
) -> None:
    """Functions such as pg_relation_filenode() return the newest state, whatever the transaction's snapshot. A poll
    that mixed both recorded the file after the change beside the columns before it, and the rows that the change
    computed were never read again."""
    connection.execute(table)
    before = facts(connection)
    poll.execute("SELECT")
    connection.execute(change)
    assert facts(poll) == before
    poll.commit()
    after = facts(poll)
    poll.commit()
    assert rows_changed(before, after, frozenset()) is not None


def test_a_partition_is_known_by_all_its_attachments_up_to_the_root(connection: psycopg.Connection) -> None:
    connection.execute(PARTS)
    before = {part.oid: part for part in facts(connection).storage}
    connection.execute("""
        ALTER TABLE things DETACH PARTITION middle;
        UPDATE leaf SET n = 2;
        ALTER TABLE things ATTACH PARTITION middle FOR VALUES FROM (0) TO (20)
    """)
    after = {part.oid: part for part in facts(connection).storage}
    assert before.keys() == after.keys()
    query: LiteralString = "SELECT oid::int8, relname::text FROM pg_class WHERE relname IN ('leaf', 'other')"
    names: dict[int, str] = dict(connection.execute(query).fetchall())
    assert {names[oid] for oid in before if before[oid].attached != after[oid].attached} == {"leaf"}


@pytest.mark.parametrize(
    ("change", "expected", "then"),
    [
        ("ALTER TABLE things RENAME TO others", "was renamed: it is public.others now",
         "ALTER TABLE public.others RENAME TO things; or name public.others"),
        ("DROP TABLE things", "was dropped", "remove it from source.tables"),
    ],
)  # fmt: skip
def test_a_table_that_has_not_its_name_any_more_is_not_blamed_on_the_publication(
    connection: psycopg.Connection, fresh_database: str, change: LiteralString, expected: str, then: str
) -> None:
    """Its entry in the publication is gone with its name."""
    connection.execute(TABLE)
    connection.execute("CREATE PUBLICATION named FOR TABLE things")
    source = SourceConfig(dsn=SecretStr(fresh_database), tables=("public.things",), publication="named")
    publication = read_publication(connection, "named", [T])
    assert publication is not None
    found = published_table(connection, T, publication, source.chosen(T))
    known = KnownTable(schema_of(found, None, Topics("shop")), facts(connection), publication.entries[T])
    connection.execute(change)
    with closing(PostgresCatalogReader(source, Topics("shop"))) as reader:
        reader.ask(CatalogPoll("one", {T: known}, {}))
        (answer,) = eventually(reader.answers, 20.0, "the poll is answered")
    assert isinstance(answer, CatalogAnswer)
    error = answer.seen[T].error
    assert error is not None
    assert (expected in error.message, then in error.hint) == (True, True), error

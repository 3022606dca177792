"""Rows of a real server, in every shape that a change can have, and what can't be followed."""

from collections.abc import Iterator

import pytest

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect
from tests.support.decoding import Source, holes, part


@pytest.fixture
def source(fresh_database: str) -> Iterator[Source]:
    config = SourceConfig.model_validate({"dsn": fresh_database, "tables": ("public.things",)})
    with connect(config) as connection:
        connection.execute("SET search_path = public")
        yield Source(connection)


def test_a_full_old_row_fills_what_an_update_did_not_send(source: Source) -> None:
    source.connection.execute(
        "CREATE TABLE things (id int PRIMARY KEY, yes bool, words text STORAGE EXTERNAL, bytes bytea STORAGE EXTERNAL,"
        " texts text[] STORAGE EXTERNAL)"
    )
    source.connection.execute("ALTER TABLE things REPLICA IDENTITY FULL")
    source.publish()
    with source.connection.transaction():
        source.connection.execute(
            "INSERT INTO things (id, yes, words, texts) VALUES (0, NULL, NULL, NULL), (2, false, '', '{}')"
        )
        source.connection.execute(
            "INSERT INTO things VALUES (1, true, repeat('long ', 20000), decode(repeat('ab', 3000), 'hex'),"
            " ARRAY[repeat('\"', 5000)])"
        )
    inserted = source.records()
    source.connection.execute("UPDATE things SET yes = NOT yes")
    updated = source.records()
    assert holes(source.received) == 3  # the large value in each of these columns
    assert [part(r, "before") for r in updated] == [part(r, "after") for r in inserted]
    for before, after in zip(inserted, updated, strict=True):
        row = part(before, "after")
        changed = row | {"yes": None if row["yes"] is None else not row["yes"]}
        assert part(after, "after") == changed
    source.connection.execute("DELETE FROM things")
    deleted = source.records()
    assert [part(r, "before") for r in deleted[::2]] == [part(r, "after") for r in updated]
    assert all(value is None for _, value, _ in deleted[1::2])


def test_a_moved_key_is_delete_tombstone_and_create(source: Source) -> None:
    source.connection.execute("CREATE TABLE things (a int, n int NOT NULL, b text, PRIMARY KEY (b, a))")
    source.publish()
    source.connection.execute("INSERT INTO things VALUES (1, 7, 'x')")
    source.connection.execute("UPDATE things SET n = 8, b = 'y'")
    source.connection.execute("UPDATE things SET n = 9")
    source.connection.execute("DELETE FROM things")
    old, new = b'{"b":"x","a":1}', b'{"b":"y","a":1}'
    records = source.records()
    assert [(key, value is None) for key, value, _ in records] == [
        (old, False),  # insert
        (old, False),
        (old, True),
        (new, False),
        (new, False),  # update of another column
        (new, False),
        (new, True),
    ]
    assert [part(records[i], "op") for i in (0, 1, 3, 4, 5)] == ["c", "d", "c", "u", "d"]
    assert part(records[1], "before") == {"a": 1, "b": "x"}  # only what is known, no nulls in place of the rest
    assert part(records[4], "before") is None
    assert records[1][2] == [("__debezium.newkey", new)]
    assert records[3][2] == [("__debezium.oldkey", old)]


def test_a_large_key_that_was_not_sent_again_comes_from_the_old_key(source: Source) -> None:
    # Incompressible, so that it is stored apart, and small enough for the index.
    source.connection.execute(
        "CREATE TABLE things (id text STORAGE EXTERNAL PRIMARY KEY, filler text STORAGE PLAIN, n int)"
    )
    source.publish()
    source.connection.execute("INSERT INTO things VALUES (repeat('k', 2500), repeat('f', 3000), 1)")
    source.connection.execute("UPDATE things SET n = 2")
    inserted, updated = source.records()
    assert holes(source.received) == 1
    assert inserted[0] == updated[0]
    assert part(updated, "after") == {"id": "k" * 2500, "filler": "f" * 3000, "n": 2}
    assert part(updated, "op") == "u"

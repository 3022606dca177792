"""Which version the schema of a table has that is in another database now."""

from dataclasses import replace

from cdc.model.events import Column, TableId, TableSchema
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import continued_schema, schema_of

TABLE = TableId("public", "orders")
ID = Column("id", 20, -1, "bigint", False, base_type_oid=20)
MOOD = Column("mood", 16_500, -1, "public.mood", True, type_kind="e", base_type_oid=16_500, labels=("sad", "ok"))
BEFORE = TableSchema(TABLE, 3, 16_600, (ID, MOOD), ("id",), "shop.public.orders")
THERE = SourceTable(
    table=TABLE,
    oid=30_600,
    is_partitioned=False,
    may_select=True,
    hides_rows=False,
    is_owned=True,
    columns=(ID, replace(MOOD, type_oid=30_500, base_type_oid=30_500)),
    key=("id",),
    is_chunkable=True,
)


def test_a_table_of_the_same_form_keeps_its_version_and_gets_the_oids_by_which_the_stream_names_it() -> None:
    found = continued_schema(THERE, BEFORE, Topics("shop"))
    assert (found.version, found.oid, found.columns) == (3, 30_600, THERE.columns)
    assert schema_of(THERE, found, Topics("shop")) == found, "a later session finds it unchanged"
    assert schema_of(THERE, BEFORE, Topics("shop")).version == 4


def test_another_form_has_the_next_version_and_a_new_table_the_first() -> None:
    assert continued_schema(replace(THERE, columns=(ID,)), BEFORE, Topics("shop")).version == 4
    assert continued_schema(THERE, None, Topics("shop")).version == 1

"""Statements that read chunks, as text; tests/integration/test_chunks.py runs them."""

from dataclasses import replace
from typing import Any

import pytest
from psycopg import sql

from cdc.model.events import Column, TableId
from cdc.postgres.chunk_statements import (
    BUILT_IN_OPERATORS,
    ChunkTable,
    KeyColumn,
    QualifiedName,
    begin_statement,
    chunk_statement,
    reread_statement,
    sample_statement,
    watermark_statement,
)

TABLE = TableId("public", "things")
ID = KeyColumn("id", ("pg_catalog", "int4"), None, BUILT_IN_OPERATORS)
NAME = KeyColumn("name", ("pg_catalog", "text"), ("pg_catalog", "C"), BUILT_IN_OPERATORS)


def foreign(name: str) -> KeyColumn:
    """A column of an extension's type."""
    operators: tuple[QualifiedName, ...] = tuple(("ext", operator) for _, operator in BUILT_IN_OPERATORS)
    return KeyColumn(name, ("ext", "citext"), ("pg_catalog", "default"), operators)


def described(*key: KeyColumn, is_partitioned: bool = False, row_filter: str | None = None) -> ChunkTable:
    return ChunkTable(TABLE, "", is_partitioned, key, row_filter)


def text(statement: sql.Composable) -> str:
    return " ".join(statement.as_string(None).split())


def chunk(*key: KeyColumn, is_partitioned: bool = False, **rows: Any) -> str:
    columns = [Column(column.name, 0, -1, "", False) for column in key] + [Column("v", 25, -1, "text", True)]
    return text(chunk_statement(described(*key, is_partitioned=is_partitioned), columns, 10, **rows))


def test_the_first_chunk_has_no_condition() -> None:
    assert chunk(ID) == ('COPY (SELECT "id", "v" FROM ONLY "public"."things" ORDER BY "id" LIMIT 10) TO STDOUT')


def test_a_later_chunk_begins_above_its_cursor_and_ends_at_its_ranges_end() -> None:
    assert (
        'WHERE "id" OPERATOR("pg_catalog".>) \'5\'::"pg_catalog"."int4"'
        ' AND "id" OPERATOR("pg_catalog".<=) \'9\'::"pg_catalog"."int4" ORDER BY'
    ) in chunk(ID, after=("5",), up_to=("9",))


def test_a_key_of_several_columns_is_compared_as_a_row() -> None:
    assert (
        'ROW("name" COLLATE "pg_catalog"."C", "id") OPERATOR("pg_catalog".>) '
        'ROW(\'x\'::"pg_catalog"."text", \'5\'::"pg_catalog"."int4")'
    ) in chunk(NAME, ID, after=("x", "5"))


def test_operators_of_several_schemas_are_compared_column_by_column() -> None:
    above = chunk(foreign("c"), ID, after=("x", "5"))
    c, x = '"c" COLLATE "pg_catalog"."default"', '\'x\'::"ext"."citext"'
    assert (
        f'({c} OPERATOR("ext".>=) {x} AND ({c} OPERATOR("ext".>) {x} OR ({c} OPERATOR("ext".=) {x} '
        'AND "id" OPERATOR("pg_catalog".>) \'5\'::"pg_catalog"."int4")))'
    ) in above
    assert 'ORDER BY "c" COLLATE "pg_catalog"."default", "id" LIMIT' in above
    up_to = chunk(foreign("c"), ID, up_to=("x", "5"))
    assert (
        f'({c} OPERATOR("ext".<=) {x} AND ({c} OPERATOR("ext".<) {x} OR ({c} OPERATOR("ext".=) {x} '
        'AND "id" OPERATOR("pg_catalog".<=) \'5\'::"pg_catalog"."int4")))'
    ) in up_to


def test_an_operator_class_that_is_not_the_default_is_named_for_sorting_too() -> None:
    key = replace(
        NAME, operators=tuple(("pg_catalog", f"~{name}~") for _, name in BUILT_IN_OPERATORS), is_default=False
    )
    assert 'ORDER BY "name" COLLATE "pg_catalog"."C" USING OPERATOR("pg_catalog".~<~) LIMIT' in chunk(key)


def test_a_domain_is_compared_as_its_base_type_and_sorted_as_itself() -> None:
    statement = chunk(replace(NAME, is_domain=True), after=("x",))
    assert '"name"::"pg_catalog"."text" COLLATE "pg_catalog"."C" OPERATOR("pg_catalog".>)' in statement
    assert 'ORDER BY "name" COLLATE "pg_catalog"."C" LIMIT' in statement


def test_conditions_stay_apart_even_when_one_ends_in_a_comment() -> None:
    statement = chunk_statement(
        described(ID, row_filter="(id > 0)"),
        [Column("id", 23, -1, "integer", False)],
        10,
        where="id < 3 OR id > 7 -- both ends",
        after=("1",),
    ).as_string(None)
    assert 'WHERE ((id > 0)\n) AND (id < 3 OR id > 7 -- both ends\n) AND "id" OPERATOR' in statement


def test_values_and_names_are_quoted() -> None:
    statement = chunk(KeyColumn('I"d', ("s", 'T"y'), None, BUILT_IN_OPERATORS), after=("a'b\\",))
    assert '"I""d" OPERATOR("pg_catalog".>)  E\'a\'\'b\\\\\'::"s"."T""y"'.replace("  ", " ") in statement


def test_partitions_are_read_through_their_root_children_are_not() -> None:
    assert 'FROM "public"."things"' in chunk(ID, is_partitioned=True)
    assert 'FROM ONLY "public"."things"' in chunk(ID, is_partitioned=False)


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_the_lock_comes_before_the_snapshot(is_partitioned: bool) -> None:
    statement = text(begin_statement(TABLE, is_partitioned=is_partitioned, prefers_index=False))
    begin, lock, chunk_table = statement.split("; ")
    assert begin == "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    only = "" if is_partitioned else "ONLY "
    assert lock == f'LOCK TABLE {only}"public"."things" IN ACCESS SHARE MODE'
    assert chunk_table.startswith("SELECT pg_current_snapshot()::text,")
    assert chunk_table.endswith("WHERE n.nspname = 'public' AND c.relname = 'things'")


def test_an_index_is_preferred_where_asked() -> None:
    assert "SET LOCAL enable_sort = off;" in text(begin_statement(TABLE, is_partitioned=False, prefers_index=True))


def test_a_mark_is_a_transactional_message() -> None:
    assert text(watermark_statement("ab'c")) == (
        "SELECT pg_catalog.pg_logical_emit_message(true, 'watershed'::text, 'ab''c'::text)"
    )


def test_a_sample_has_keys_only_in_the_keys_order() -> None:
    statement = sample_statement(described(NAME, ID, row_filter="(id > 0)"), percent=0.25)
    assert text(statement) == (
        'COPY (SELECT "name", "id" FROM ONLY "public"."things" TABLESAMPLE SYSTEM (0.250000) WHERE ((id > 0) ) '
        'ORDER BY "name" COLLATE "pg_catalog"."C", "id") TO STDOUT'
    )


def test_keys_are_looked_up_in_their_range_and_compared_as_the_index_does() -> None:
    made = reread_statement(described(NAME, row_filter="(v > 0)"), (), [("a",), ("b'",)], after=("_",))
    assert text(made) == (
        'COPY (SELECT "ws row", "ws xmin", "asked"."name", "found"."name"'
        ' FROM (SELECT * FROM (VALUES (0, \'a\'::"pg_catalog"."text"), (1, \'b\'\'\'::"pg_catalog"."text"))'
        ' AS asked ("ws row", "name")'
        ' WHERE "name" COLLATE "pg_catalog"."C" OPERATOR("pg_catalog".>) \'_\'::"pg_catalog"."text") AS asked'
        ' LEFT JOIN (SELECT xmin AS "ws xmin", "name" FROM ONLY "public"."things" WHERE ((v > 0) )) AS found'
        ' ON "found"."name" COLLATE "pg_catalog"."C" OPERATOR("pg_catalog".=) "asked"."name"'
        ' ORDER BY "ws row") TO STDOUT'
    )


def test_a_chunk_of_certain_keys_has_them_in_its_condition() -> None:
    int4 = '::"pg_catalog"."int4"'
    assert f'WHERE "id" OPERATOR("pg_catalog".=) ANY (ARRAY[\'1\'{int4}, \'2\'{int4}]) ORDER BY "id"' in chunk(
        ID, keys=[("1",), ("2",)]
    )
    both = chunk(NAME, ID, keys=[("x", "5"), ("y", "6")], after=("x", "5"))
    equal = 'OPERATOR("pg_catalog".=)'
    name = f'"name" COLLATE "pg_catalog"."C" {equal}'
    assert both.endswith(
        f'AND (({name} \'x\'::"pg_catalog"."text" AND "id" {equal} \'5\'{int4})'
        f' OR ({name} \'y\'::"pg_catalog"."text" AND "id" {equal} \'6\'{int4}))'
        ' ORDER BY "name" COLLATE "pg_catalog"."C", "id" LIMIT 10) TO STDOUT'
    )


def test_rows_are_read_again_by_key_one_line_for_each_in_their_order() -> None:
    made = reread_statement(described(NAME, ID, row_filter="n > 1 -- x"), ["body", "id"], [("x", "5"), ("y", "6")])
    assert text(made) == (
        'COPY (SELECT "ws row", "ws xmin", "asked"."name", "asked"."id",'
        ' "found"."name", "found"."id", "found"."body", "found"."id"'
        ' FROM (SELECT * FROM (VALUES (0, \'x\'::"pg_catalog"."text", \'5\'::"pg_catalog"."int4"),'
        ' (1, \'y\'::"pg_catalog"."text", \'6\'::"pg_catalog"."int4")) AS asked ("ws row", "name", "id") ) AS asked'
        ' LEFT JOIN (SELECT xmin AS "ws xmin", "name", "id", "body" FROM ONLY "public"."things" WHERE (n > 1 -- x )'
        ') AS found ON "found"."name" COLLATE "pg_catalog"."C" OPERATOR("pg_catalog".=) "asked"."name"'
        ' AND "found"."id" OPERATOR("pg_catalog".=) "asked"."id" ORDER BY "ws row") TO STDOUT'
    )

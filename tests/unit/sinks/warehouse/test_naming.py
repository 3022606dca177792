"""Where tables live, and which columns are refused by name."""

import pytest

from cdc.config.store_shapes import WarehouseMode
from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.warehouse.naming import check_columns, quoted, table_location


def schema(*columns: str) -> TableSchema:
    listed = tuple(Column(name, 25, -1, "text", True, "b", 25) for name in columns)
    return TableSchema(TableId("public", "customers"), 1, 1, listed, columns[:1], "shop.public.customers")


def test_a_table_and_its_deleted_keys() -> None:
    found = table_location("shop", TableId("public", "customers"))
    assert found.rows == ("shop", "public", "customers")
    assert found.deleted == ("shop", "public__deleted", "customers")


@pytest.mark.parametrize(("mode", "name"), [("history", "Valid_From"), ("changelog", "operation")])
def test_columns_of_the_mode_are_taken(mode: WarehouseMode, name: str) -> None:
    check_columns(schema("id", name))
    with pytest.raises(RefusedError, match=f"its column {name.lower()} has the name of a column that mode {mode} adds"):
        check_columns(schema("id", name), mode)


def test_names_are_safe_as_folders() -> None:
    assert table_location("shop", TableId("Größe.eu", 'a/b "c"')).rows == ("shop", "Gr__e_eu", "a_b__c_")


def test_names_are_quoted() -> None:
    assert quoted("a b", "c`d") == "`a b`.`c``d`"


def test_ordinary_columns_pass() -> None:
    check_columns(schema("id", "Name", "deleted", "version", "_x", "file", "wsx"))


@pytest.mark.parametrize(
    "name",
    [
        "ws_version",
        "ws_deleted",
        "WS_other",
        "_file",
        "_pos",
        "_Partition",
        "_row_id",
        "__row_operation",
        "__ROW_from_source",
        "__original_row_id_1",
        "W\u017f_version",
    ],
)
def test_reserved_columns_are_refused_by_name(name: str) -> None:
    with pytest.raises(RefusedError, match=rf"public\.customers.*'{name}'") as refused:
        check_columns(schema("id", name))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("name", "Name"),
        ("i", "\u0131"),  # dotless
        ("sinif", "SIN\u0131F"),
        ("i", "\u0130"),  # a capital with a dot
        ("s", "\u017f"),  # long
        ("\u03c3", "\u03c2"),  # sigma, final
        ("\u00b5", "\u03bc"),  # micro, mu
        ("k", "\u212a"),  # kelvin
        ("\u00df", "\u1e9e"),  # sharp s
    ],
)
def test_columns_that_differ_in_case_only_are_refused(one: str, other: str) -> None:
    """As Java folds case: Spark writes the values of the one into the other."""
    with pytest.raises(RefusedError, match=f"'{one}' and '{other}'"):
        check_columns(schema("id", one, other))


def test_columns_that_java_tells_apart_are_taken() -> None:
    check_columns(schema("id", "stra\u00dfe", "strasse", "\u00e9", "e\u0301", "\ufb01", "fi"))

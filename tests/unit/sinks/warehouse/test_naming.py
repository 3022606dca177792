"""Where tables live, and which columns are refused by name."""

import pytest

from cdc.errors import RefusedError
from cdc.events import Column, TableId, TableSchema
from sinks.warehouse.naming import check_columns, place, quoted


def schema(*columns: str) -> TableSchema:
    listed = tuple(Column(name, 25, -1, "text", True, "b", 25) for name in columns)
    return TableSchema(TableId("public", "customers"), 1, 1, listed, columns[:1], "shop.public.customers")


def test_a_table_and_its_view() -> None:
    found = place("shop", TableId("public", "customers"))
    assert found.live == ("shop", "public", "customers")
    assert found.rows == ("shop", "public", "customers_with_deleted")


def test_names_are_safe_as_folders() -> None:
    assert place("shop", TableId("Größe.eu", 'a/b "c"')).live == ("shop", "Gr__e_eu", "a_b__c_")


def test_names_are_quoted() -> None:
    assert quoted("a b", "c`d") == "`a b`.`c``d`"


def test_ordinary_columns_pass() -> None:
    check_columns(schema("id", "Name", "deleted", "version", "_x", "file", "wsx"))


@pytest.mark.parametrize("name", ["ws_version", "ws_deleted", "WS_other", "_file", "_pos", "_Partition", "_row_id"])
def test_reserved_columns_are_refused_by_name(name: str) -> None:
    with pytest.raises(RefusedError, match=rf"public\.customers.*'{name}'") as refused:
        check_columns(schema("id", name))
    assert refused.value.hint


def test_columns_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"'name' and 'Name'"):
        check_columns(schema("id", "name", "Name"))

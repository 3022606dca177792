"""Keys tell tables and rows apart."""

from itertools import combinations

import pytest

from cdc.model.events import EPOCH_MAX, SEQ_MAX, TableId, pack_version
from sinks.cache.keys import CacheKeys, version_text

TABLES = [
    TableId("public", "customers"),
    TableId("public", "customers.old"),
    TableId("public.customers", "old"),
    TableId("public", "customers:1"),
    TableId("public", "customers%3A1"),
    TableId("public", "Customers"),
    TableId("public", "kunden-größe"),
]


def test_an_ordinary_table_has_readable_keys() -> None:
    keys = CacheKeys("shop")
    assert keys.generation == "shop:watershed"
    assert keys.table(TABLES[0]) == "shop:public.customers:"
    assert keys.deleted(TABLES[0]) == "shop:public.customers.deleted:"


def test_no_table_shares_keys_with_another() -> None:
    keys = CacheKeys("shop")
    beginnings = [name(table) for table in TABLES for name in (keys.table, keys.deleted)]
    for left, right in combinations(beginnings, 2):
        assert not left.startswith(right)
        assert not right.startswith(left)
    assert all(not keys.generation.startswith(beginning) for beginning in beginnings)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_found_again_from_its_field(table: TableId) -> None:
    keys = CacheKeys("shop")
    assert keys.table_of_field(keys.table_field(table)) == table


@pytest.mark.parametrize("field", ["generation", "run_id", "table"])
def test_other_fields_are_no_tables(field: str) -> None:
    assert CacheKeys("shop").table_of_field(field) is None


def test_versions_sort_as_texts() -> None:
    versions = [0, 1, 9, 10, 2**53, 2**53 + 1, pack_version(1, 0), pack_version(9, SEQ_MAX), pack_version(10, 0)]
    versions.append(pack_version(EPOCH_MAX, SEQ_MAX))
    versions.sort()
    texts = [version_text(version) for version in versions]
    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {19}
    assert [int(text) for text in texts] == versions

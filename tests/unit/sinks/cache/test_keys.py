"""Keys tell tables and rows apart."""

from itertools import combinations

import pytest

from cdc.model.events import EPOCH_MAX, SEQ_MAX, TableId, pack_version
from sinks.cache.keys import CacheKeys, hash_tag, version_text

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


@pytest.mark.parametrize("prefix", ["shop", "{shop}", "a}b", "a{b"])
@pytest.mark.parametrize("table", TABLES)
def test_all_keys_of_a_table_in_a_cluster_have_one_hash_tag(prefix: str, table: TableId) -> None:
    keys = CacheKeys(prefix, in_cluster=True)
    names = [keys.table(table), f"{keys.table(table)}a{{b}}", f"{keys.deleted(table)}{{}}", keys.met(table)]
    assert len({hash_tag(name) for name in names}) == 1 and hash_tag(names[0])


@pytest.mark.parametrize("in_cluster", [False, True])
def test_no_table_shares_keys_with_another(in_cluster: bool) -> None:
    keys = CacheKeys("shop", in_cluster)
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

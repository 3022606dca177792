"""Keys tell tables and rows apart, and a SCAN pattern finds one table's."""

from fnmatch import fnmatchcase
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


def test_no_table_shares_keys_with_another() -> None:
    keys = CacheKeys("shop")
    for left, right in combinations(TABLES, 2):
        assert not keys.table(left).startswith(keys.table(right))
        assert not keys.table(right).startswith(keys.table(left))
    assert all(not keys.generation.startswith(keys.table(table)) for table in TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_found_again_from_its_field(table: TableId) -> None:
    keys = CacheKeys("shop")
    assert keys.table_of_field(keys.table_field(table)) == keys.table(table)


@pytest.mark.parametrize("field", ["generation", "run_id", "table"])
def test_other_fields_are_no_tables(field: str) -> None:
    assert CacheKeys("shop").table_of_field(field) is None


@pytest.mark.parametrize("prefix", ["shop", "a*b", "a?b", "a[bc]d", "a\\b", "a-b", "a^b"])
def test_characters_of_the_prefix_mean_themselves_in_a_pattern(prefix: str) -> None:
    """Every character that means something in Redis's glob has a backslash before it; what is left is one star."""
    pattern = CacheKeys(prefix).pattern(TABLES[0])
    assert pattern.endswith(":*")
    body = pattern[:-1]
    plain = ""
    position = 0
    while position < len(body):
        if body[position] == "\\":
            position += 1
        else:
            assert body[position] not in "*?[]^-"
        plain += body[position]
        position += 1
    assert plain == CacheKeys(prefix).table(TABLES[0])


def test_an_ordinary_pattern_is_a_plain_glob() -> None:
    pattern = CacheKeys("shop").pattern(TABLES[0])
    assert fnmatchcase("shop:public.customers:1", pattern)
    assert not fnmatchcase("shop:public.customersx:1", pattern)


def test_versions_sort_as_texts() -> None:
    versions = [0, 1, 9, 10, 2**53, 2**53 + 1, pack_version(1, 0), pack_version(9, SEQ_MAX), pack_version(10, 0)]
    versions.append(pack_version(EPOCH_MAX, SEQ_MAX))
    versions.sort()
    texts = [version_text(version) for version in versions]
    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {19}
    assert [int(text) for text in texts] == versions

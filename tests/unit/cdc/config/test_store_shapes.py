"""Shapes of tables in a store: which one counts, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.store_shapes import CacheShape, SearchShape, StoreTls, shape_of
from cdc.config.stores import CacheConfig, SearchConfig, StoreConfig, unmatched_pattern
from cdc.config.table_choice import TableChoice
from cdc.model.events import TableId

USERS, ORDERS = TableId("public", "users"), TableId("shop", "orders")


def test_the_first_pattern_that_matches_counts() -> None:
    shapes = {"public.users": 1, "public.*": 2, "*": 3}
    tables = (USERS, TableId("public", "x"), ORDERS)
    assert [shape_of(shapes, table, 0) for table in tables] == [1, 2, 3]
    assert shape_of({"public.*": 2}, ORDERS, 0) == 0


def test_a_pattern_without_a_table_is_found() -> None:
    sinks: dict[str, StoreConfig] = {
        "users": CacheConfig.model_validate({"url": "redis://h", "shapes": {"public.user?": {}, "shop.order": {}}})
    }
    problem = "users.shapes: shop.order matches no table of source.tables"
    assert unmatched_pattern(sinks, [USERS, ORDERS], TableChoice(())) == problem
    assert unmatched_pattern(sinks, [], TableChoice(("public.*",))) == problem
    assert unmatched_pattern(sinks, [], TableChoice(("public.*", "shop.*"))) is None


def test_three_lines_are_enough() -> None:
    assert CacheConfig.model_validate({"url": "redis://h"}).shapes == {}
    assert SearchConfig.model_validate({"url": "http://h"}).shapes == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"publish": "c"}, "publish and stream are for mode: invalidate"),
        ({"mode": "invalidate"}, "requires key"),
        ({"mode": "invalidate", "key": "u:{id}", "ttl_s": 5}, "stores nothing"),
        ({"value": "xml"}, "value"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"kye": "u:{id}"}, "kye"),
    ],
)
def test_a_shape_of_the_cache_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CacheShape.model_validate(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alias": "{tabel}"}, "may name"),
        ({"index": "{"}, "may name"),
        ({"alias": "a", "index": "a"}, "different names"),
        ({"json": "nested"}, "json"),
        ({"mapping": {"name": "text"}}, "name"),
        ({"settings": {"translog": {"durability": "async"}}}, "lose rows that it has acknowledged"),
        ({"settings": {"index.translog.durability": "async"}}, "lose rows that it has acknowledged"),
        ({"settings": {"index": {"translog.durability": "async"}}}, "lose rows that it has acknowledged"),
    ],
)
def test_a_shape_of_the_search_index_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SearchShape.model_validate(options)


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValidationError, match="must be set together"):
        StoreTls(certificate_file="client.pem")

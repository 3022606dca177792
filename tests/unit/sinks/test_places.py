"""The names under which readers find a table."""

import pytest

from cdc.config.store_types import section_class
from cdc.config.stores import SqlConfig, StoreConfig
from cdc.model.events import TableId
from sinks.errors import RefusedError
from sinks.places import reader_names

TABLE = TableId("public", "Orders")


def section(kind: str, **options: object) -> StoreConfig:
    return section_class(kind).model_validate(options)


@pytest.mark.parametrize(
    ("store", "names"),
    [
        (
            section("search", url="http://s"),
            {"alias": "shop.public.orders", "index": "shop.public.orders.documents"},
        ),
        (
            section("search", url="http://s", index_prefix="a", shapes={"public.*": {"alias": "{table}"}}),
            {"alias": "orders", "index": "orders.documents"},
        ),
        (section("cache", url="redis://c"), {"key": "shop:public.Orders:<row id>", "versions": "shop:public.Orders:"}),
        (
            section("cache", url="redis://c", shapes={"*": {"key": "order:{id}", "lookups": ["by:{a}", "of:{b}"]}}),
            {"key": "order:{id}", "versions": "shop:public.Orders:", "lookup keys": "by:{a}, of:{b}"},
        ),
        (section("sql", url="postgresql://w/x"), {"table": "public.Orders"}),
        (section("sql", url="sqlite:////a.db"), {"table": "public_Orders"}),
        (section("warehouse", catalog_uri="jdbc:sqlite:c.db", location="/l"), {"table": "shop.public.Orders"}),
    ],
)
def test_each_store_names_the_table(store: StoreConfig, names: dict[str, str]) -> None:
    assert reader_names(store, "shop", TABLE) == names


def test_a_name_that_the_store_can_not_have_is_refused() -> None:
    store = SqlConfig.model_validate({"url": "postgresql://w/x", "shapes": {"*": {"table": "x" * 100}}})
    with pytest.raises(RefusedError, match="is longer than 63 bytes"):
        reader_names(store, "shop", TABLE)


def test_a_store_of_another_package_has_no_names_that_we_know() -> None:
    assert reader_names(StoreConfig(type="disk"), "shop", TABLE) == {}

"""Index names are legal, and tell the documents from what readers use."""

import pytest

from cdc.model.events import TableId
from sinks.errors import RefusedError
from sinks.search.names import SearchNames

CUSTOMERS = TableId("public", "customers")


def test_names_of_an_ordinary_table() -> None:
    names = SearchNames("shop")
    assert names.alias(CUSTOMERS) == "shop.public.customers"
    assert names.index(CUSTOMERS) == "shop.public.customers.documents"
    assert names.marker == "shop.watershed"


@pytest.mark.parametrize(
    ("table", "alias"),
    [
        (TableId("Sales", "Order Items"), "shop.sales.order_items"),
        (TableId("s", 'a/b\\c*d?e"f<g>h|i,j#k:l\nm'), "shop.s.a_b_c_d_e_f_g_h_i_j_k_l_m"),
        (TableId("größe", "ÄÖ"), "shop.größe.äö"),
        (TableId("-x", "_y"), "shop.-x._y"),
    ],
)
def test_what_opensearch_does_not_allow_is_replaced(table: TableId, alias: str) -> None:
    assert SearchNames("shop").alias(table) == alias


@pytest.mark.parametrize("prefix", ["", "_shop", "-shop", ".shop", "+shop", "/shop"])
def test_a_prefix_that_no_name_may_begin_with_is_refused(prefix: str) -> None:
    with pytest.raises(RefusedError, match="can't begin with") as caught:
        SearchNames(prefix)
    assert "index_prefix" in caught.value.hint


def test_a_name_that_is_too_long_is_refused_by_table() -> None:
    table = TableId("s" * 63, "t" * 63)
    longest = 255 - len(f".{table.schema}.{table.name}.documents")
    assert len(SearchNames("p" * longest).index(table)) == 255
    with pytest.raises(RefusedError, match=f"table {table} would be longer than 255 bytes"):
        SearchNames("p" * (longest + 1)).index(table)

"""The verdict on a comparison, and the memory of processes."""

import os

from cdc.model.events import TableId
from watershed.demo.main import tree_mib, verdict
from watershed.verify.model import DriftKind, RowDifference, TableResult

ORDERS = TableId("public", "orders")


def test_only_a_comparison_of_every_row_without_a_difference_is_a_success() -> None:
    right = [TableResult("search", ORDERS, 9, 9), TableResult("cache", ORDERS, 9, 9)]
    assert verdict(right) == ("0 differences in search, cache", True)
    wrong = TableResult("cache", ORDERS, 9, 8)
    wrong.add(RowDifference(b'{"id":1}', DriftKind.MISSING))
    assert verdict([right[0], wrong]) == ("1 rows differ in search, cache", False)
    for missed in (
        TableResult("cache", ORDERS, 9, 9, undecided=1),
        TableResult("cache", ORDERS, why_not="capture has stopped the table"),
    ):
        text = "0 differences in search, cache; not compared, or not every row: public.orders in cache"
        assert verdict([right[0], missed]) == (text, False)


def test_memory_is_that_of_a_whole_tree_and_nothing_for_who_has_ended() -> None:
    assert tree_mib(os.getpid()) > 5
    assert tree_mib(2**22 + 1) == 0

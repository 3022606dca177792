"""The shop of the benchmark of view bases, and that a base with a wrong document is not measured."""

from collections.abc import Iterator
from typing import Any

import pytest

from cdc.model.events import TableId
from sinks.contract import Change
from tests.bench.view_bases_rounds import WrongDocumentError, measure
from tests.bench.view_bases_shop import CUSTOMERS, LINES, ORDERS, Document, Shop

SIZE = 40


class FoldedBase:
    """Applies changes to dicts, and computes documents by reading all rows."""

    def __init__(self) -> None:
        self._rows: dict[TableId, dict[tuple[Any, ...], Any]] = {CUSTOMERS.id: {}, ORDERS.id: {}, LINES.id: {}}

    def fill(self, batches: Iterator[list[Change]]) -> None:
        for some in batches:
            self.write(some)

    def write(self, changes: list[Change]) -> None:
        for change in changes:
            self._rows[change.table].pop(key := tuple(change.key.values()), None)
            if change.row is not None:
                self._rows[change.table][key] = change.row

    def compute(self, written: Any) -> dict[int, Document | None]:
        del written
        return {row["id"]: self._document(row) for row in self._rows[CUSTOMERS.id].values()}

    def documents(self, computed: Any) -> dict[int, Document | None]:
        return dict(computed)

    def run_if_due(self) -> None:
        pass

    def sizes(self) -> dict[str, float]:
        return {}

    def _document(self, row: dict[str, Any]) -> Document:
        own = [one for one in self._rows[ORDERS.id].values() if one["customer_id"] == row["id"]]
        orders = [
            {name: one[name] for name in ("id", "status", "note", "total")} | {"lines": self._lines(one["id"])}
            for one in own
        ]
        return row | {"orders": sorted(orders, key=lambda order: order["id"])}

    def _lines(self, order: int) -> list[Document]:
        own = [one for one in self._rows[LINES.id].values() if one["order_id"] == order]
        return [
            {
                "no": one["line_no"],
                "product": one["product_id"],
                "quantity": one["quantity"],
                "price": one["unit_price"],
            }
            for one in sorted(own, key=lambda line: line["line_no"])
        ]


@pytest.mark.parametrize("seed", range(5))
def test_the_named_customers_are_those_whose_documents_change(seed: int) -> None:
    shop, base = Shop(SIZE, seed), FoldedBase()
    base.fill(shop.fill())
    before = base.compute(None)
    for number, count in enumerate((1, 1, 1, 7, 20, 60)):
        done = shop.round(number, count)
        assert len({(change.table, *change.key.values()) for change in done.changes}) == count
        base.write(done.changes)
        after = base.compute(None)
        assert {customer for customer in after if after[customer] != before[customer]} <= done.customers
        assert after == {customer: shop.document(customer) for customer in after}
        before = after


def test_shops_of_one_seed_make_the_same_changes() -> None:
    first, second, third = Shop(SIZE), Shop(SIZE), Shop(SIZE, 2)
    assert list(first.fill()) == list(second.fill()) != list(third.fill())
    assert first.round(0, 30) == second.round(0, 30) != third.round(0, 30)


def test_a_base_that_computes_a_wrong_document_is_refused() -> None:
    class LateBase(FoldedBase):
        """Returns the documents as they were before the changes."""

        def write(self, changes: list[Change]) -> Any:
            before = super().compute(None)
            super().write(changes)
            return before

        def compute(self, written: Any) -> dict[int, Document | None]:
            return dict(written)

    assert measure(FoldedBase(), Shop(SIZE), [1, 10], 3)["changes_10"]["documents"] > 1
    with pytest.raises(WrongDocumentError, match="round 0: customer"):
        measure(LateBase(), Shop(SIZE), [1, 10], 3)

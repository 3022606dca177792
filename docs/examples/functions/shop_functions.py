"""A function for mappings: the net total of an order, by the tax of its country. Orders of testers are left out."""

from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from cdc.config.row_functions import RowFunction

TAX: Final = {"AT": Decimal("0.20"), "DE": Decimal("0.19"), "CH": Decimal("0.081")}


def net_total(order: dict[str, Any]) -> dict[str, Any] | None:
    """Raises KeyError for a country whose tax is not known: the order is a dead letter."""
    if order["email"] is not None and order["email"].endswith("@tests.example"):
        return None
    if order["gross"] is None or order["country"] is None:
        return {"net": None, "is_export": None}
    net = order["gross"] / (1 + TAX[order["country"]])
    return {"net": net.quantize(Decimal("0.01"), ROUND_HALF_UP), "is_export": order["country"] == "CH"}


NET_TOTAL: Final = RowFunction(
    net_total,
    reads=("gross", "country", "email"),
    returns={"net": "numeric", "is_export": "boolean"},
    version="1",
)

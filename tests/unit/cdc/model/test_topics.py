"""Names of topics."""

from cdc.model.events import TableId
from cdc.model.topics import Topics


def test_names_of_topics() -> None:
    topics = Topics("shop")
    assert (topics.state, topics.control, topics.progress) == ("shop.state", "shop.control", "shop.progress")
    assert topics.table(TableId("public", "orders")) == "shop.public.orders"
    assert topics.table(TableId("Sales 2024", "Größe/№")) == "shop.Sales_2024.Gr__e__"

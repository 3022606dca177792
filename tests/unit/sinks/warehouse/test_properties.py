"""What the warehouse notes about itself."""

from cdc.model.events import TableId
from sinks.warehouse.properties import TABLES, listed_tables


def test_listed_tables_keep_names_with_dots_apart() -> None:
    assert listed_tables({TABLES: '[["a.b","c"],["a","b.c"]]'}) == [TableId("a.b", "c"), TableId("a", "b.c")]
    assert listed_tables({}) == []

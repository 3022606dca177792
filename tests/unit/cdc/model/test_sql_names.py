"""Names in statements are quoted where they must be."""

import pytest

from cdc.model.events import TableId
from cdc.model.sql_names import sql_name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TableId("public", "orders_2"), "public.orders_2"),
        (TableId("public", "Orders"), 'public."Orders"'),
        (TableId("My Shop", "a.b"), '"My Shop"."a.b"'),
        (TableId("public", 'say "hi"'), 'public."say ""hi"""'),
        (TableId("public", "2024"), 'public."2024"'),
    ],
)
def test_a_name_is_quoted_where_it_must_be(table: TableId, message: str) -> None:
    assert sql_name(*table) == message

"""Section `views`: errors of the configuration, by the view's name."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.settings import Config

SINKS: dict[str, Any] = {
    "copy": {"type": "sql", "url": "postgresql://localhost/copy"},
    "file": {"type": "sql", "url": "sqlite:///copy.db"},
    "search": {"url": "http://localhost:9200"},
}
VIEW: dict[str, Any] = {
    "base": "copy",
    "sql": "SELECT id FROM orders",
    "key": ["id"],
    "target": {"type": "search", "url": "http://localhost:9200"},
}


def configured(name: str = "documents", **changes: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "postgresql://localhost/shop", "tables": ["public.orders"]},
            "kafka": {"bootstrap_servers": "localhost:9092"},
            "topics": {"prefix": "shop"},
            "sinks": SINKS,
            "views": {name: VIEW | changes},
        }
    )


def test_a_view_has_a_base_a_query_a_key_and_a_target() -> None:
    view = configured().views["documents"]
    assert (view.base, view.key, view.keys_per_batch) == ("copy", ("id",), 200)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Two Words"}, "can't be a view's name"),
        ({"base": "search"}, "search is not a sink of type sql"),
        ({"base": "file"}, "not PostgreSQL"),
        ({"base": "nobody"}, "nobody is not a sink of type sql"),
        ({"key": []}, "at least 1 item"),
        ({"key": ["id", "id"]}, "in the key twice"),
        ({"target": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/c.db", "location": "/w"}}, "type warehouse"),
        ({"target": VIEW["target"] | {"mapping": {"public.orders": {"exclude": ["note"]}}}}, "leave the mapping out"),
        ({"target": VIEW["target"] | {"index_prefix": "shop"}}, "shares its store with the sink search"),
    ],
)
def test_an_error_names_the_view_or_the_option(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        configured(**changes)

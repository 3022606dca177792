"""Sinks by names of the user's choice: types, names in stores, patterns of tables."""

from pathlib import Path
from typing import Any

import pytest

from cdc.config.stores import CacheConfig, SearchConfig, sink_config
from cdc.model.errors import ConfigError
from tests.unit.cdc.config.test_config_file import load, minimal, refusal


def with_sinks(**sinks: Any) -> dict[str, Any]:
    return minimal() | {"sinks": sinks}


def test_a_sink_that_is_named_like_a_type_needs_none(tmp_path: Path) -> None:
    config = load(tmp_path, with_sinks(search={"url": "http://s"}, users={"type": "cache", "url": "redis://c"}))
    assert isinstance(config.sinks["search"], SearchConfig)
    assert isinstance(sink_config(config.sinks, "users"), CacheConfig)
    with pytest.raises(ConfigError, match="no sink 'cache'\n  next: sinks with a section are: search, users"):
        sink_config(config.sinks, "cache")


@pytest.mark.parametrize(
    ("sinks", "reported"),
    [
        ({"a.b": {"type": "cache"}}, "sinks: 'a.b' can't be a sink's name: letters, digits, _ and -, 100 at most"),
        ({"users": {"type": "disk"}}, "sinks.users: type is one of search, cache, warehouse"),
        ({"users": {"type": "cache"}}, "sinks.users.url: missing"),
        (
            {"a": {"type": "cache", "url": "redis://me@c"}, "b": {"type": "cache", "url": "redis://c:6379/"}},
            "file: sinks: a and b would share one store: give one of them another key_prefix, or another server",
        ),
        (
            {
                "a": {"type": "search", "url": "http://s", "index_prefix": "Shop"},
                "b": {"type": "search", "url": "http://s:9200"},
            },
            "file: sinks: a and b would share one store: give one of them another index_prefix, or another server",
        ),
        (
            {
                "a": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:a.db", "location": "tables"},
                "b": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:b.db", "location": "tables/"},
            },
            "file: sinks: a and b would share one store: give one of them another namespace, or another server",
        ),
        (
            {"search": {"url": "http://s", "tables": ["public.ordres"]}},
            "file: sinks: search.tables: public.ordres matches no table of source.tables",
        ),
        (
            {"search": {"url": "http://s", "mapping": {"audit.*": {}}}},
            "file: sinks: search.mapping: audit.* matches no table of source.tables",
        ),
        ({"search": {"url": "http://s", "mapping": {"orders": {}}}}, "sinks.search.mapping: 'orders' is not schema"),
        (
            {"search": {"url": "http://s", "mapping": {"public.orders": {"where": "a = NULL"}}}},
            "sinks.search.mapping.public.orders.where: nothing is equal to NULL",
        ),
        (
            {
                "search": {
                    "url": "http://s",
                    "mapping": {"public.orders": {"rename": {"a": "x"}, "constants": {"x": 1}}},
                }
            },
            "sinks.search.mapping.public.orders: two columns would be named x",
        ),
        (
            {
                "search": {
                    "url": "http://s",
                    "mapping": {"public.orders": {"mask": {"hash": ["a"], "hash_key": "short"}}},
                }
            },
            "sinks.search.mapping.public.orders.mask: hash requires hash_key, with at least 16 characters",
        ),
        (
            {"search": {"url": "http://s", "mapping": {"public.orders": {"constants": {"n": 1 << 63}}}}},
            "sinks.search.mapping.public.orders.constants: the constant n does not fit in 64 bits",
        ),
    ],
)
def test_what_can_not_be_used_is_refused_by_name(tmp_path: Path, sinks: dict[str, Any], reported: str) -> None:
    message = refusal(tmp_path, with_sinks(**sinks))
    assert message.startswith(reported), message


def test_two_sinks_of_one_type_have_stores_of_their_own(tmp_path: Path) -> None:
    load(
        tmp_path,
        with_sinks(
            a={"type": "cache", "url": "redis://c/0"},
            b={"type": "cache", "url": "redis://c/1"},
            c={"type": "cache", "url": "redis://c/0", "key_prefix": "c"},
            search={"url": "http://c:6379/0"},
        ),
    )


def test_the_environment_overrides_one_key_of_a_named_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__SINKS__USERS__URL", "redis://elsewhere")
    config = load(tmp_path, with_sinks(users={"type": "cache", "url": "redis://c", "key_prefix": "u"}))
    users = config.sinks["users"]
    assert isinstance(users, CacheConfig)
    assert (users.url.get_secret_value(), users.key_prefix) == ("redis://elsewhere", "u")

"""Section `views`: errors of the configuration, by the view's name."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.config_file import Config, load_config
from cdc.config.views import FoldConfig, ViewConfig, view_topics
from cdc.model.errors import ConfigError

SINKS: dict[str, Any] = {
    "copy": {"type": "sql", "url": "postgresql://localhost/copy"},
    "file": {"type": "sql", "url": "sqlite:///copy.db"},
    "search": {"url": "http://localhost:9200"},
    "lake": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/c.db", "location": "/w", "namespace": "lake"},
}
VIEW: dict[str, Any] = {
    "base": "copy",
    "sql": "SELECT id FROM orders",
    "key": ["id"],
    "target": {"type": "search", "url": "http://localhost:9200"},
}
WAREHOUSE: dict[str, Any] = {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/c.db", "location": "/w"}

SETTINGS: dict[str, Any] = {
    "source": {"dsn": "postgresql://localhost/shop", "tables": ["public.orders"]},
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "topics": {"prefix": "shop"},
    "sinks": SINKS,
}


def configured(name: str = "documents", **changes: Any) -> Config:
    return Config.model_validate(SETTINGS | {"views": {name: VIEW | changes}})


def test_a_view_has_a_base_a_query_a_key_and_a_target() -> None:
    view = configured().views["documents"]
    assert (view.base, view.key, view.keys_per_batch) == ("copy", ("id",), 200)
    assert configured(target=WAREHOUSE).views["documents"].target.type == "warehouse"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Two Words"}, "can't be a view's name"),
        ({"base": "search"}, "search is not a sink of type sql"),
        ({"base": "file"}, "not PostgreSQL"),
        ({"base": "nobody"}, "nobody is not a sink of type sql"),
        ({"key": []}, "at least 1 item"),
        ({"key": ["id", "id"]}, "in the key twice"),
        (
            {"target": WAREHOUSE | {"shapes": {"views.*": {"mode": "history"}}}},
            "can't have mode history, .*leave mode",
        ),
        ({"target": WAREHOUSE | {"shapes": {"*": {"mode": "changelog"}}}}, "can't have mode changelog"),
        ({"target": WAREHOUSE | {"namespace": "lake"}}, "shares its store with the sink lake: set another namespace"),
        ({"target": VIEW["target"] | {"mapping": {"public.orders": {"exclude": ["note"]}}}}, "leave the mapping out"),
        ({"target": VIEW["target"] | {"index_prefix": "shop"}}, "shares its store with the sink search"),
        ({"target": {"type": "topic", "name": "no space"}}, "'no space' can't be a topic's name"),
        ({"target": {"type": "topic", "name": ".."}}, "can't be a topic's name"),
        ({"target": {"type": "topic", "partitions": 0}}, "greater than or equal to 1"),
        ({"target": {"type": "topic", "name": "shop.state"}}, "Watershed's own topic shop.state and view documents"),
        ({"target": {"type": "topic", "name": "shop.public_orders"}}, "view documents and table public.orders"),
    ],
)
def test_an_error_names_the_view_or_the_option(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        configured(**changes)


def test_a_views_topic_has_a_name_of_its_own() -> None:
    settings = configured(target={"type": "topic"})
    assert view_topics(settings.views, "shop") == {"documents": "shop.view.documents"}
    assert view_topics(configured().views, "shop") == {}
    shared = VIEW | {"target": {"type": "topic", "name": "t"}}
    with pytest.raises(ValidationError, match="view one and view two would share the topic t"):
        Config.model_validate(SETTINGS | {"views": {"one": shared, "two": shared}})


@pytest.mark.parametrize(
    ("target", "option"),
    [
        (WAREHOUSE, "namespace"),
        (VIEW["target"], "index_prefix"),
        ({"type": "sql", "url": "sqlite:///v.db"}, "own_schema"),
    ],
)
def test_each_view_has_a_store_of_its_own(target: dict[str, Any], option: str) -> None:
    one, two = (VIEW | {"target": target | {option: name}} for name in ("one", "two"))
    assert len(Config.model_validate(SETTINGS | {"views": {"first": one, "second": two}}).views) == 2
    with pytest.raises(
        ValidationError, match=f"second.target shares its store with the view first: set another {option}"
    ):
        Config.model_validate(SETTINGS | {"views": {"first": one, "second": one}})


def test_a_sink_that_is_a_topic_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="log: type topic is for the target of a view"):
        Config.model_validate(SETTINGS | {"sinks": {"log": {"type": "topic"}}})


def test_an_error_in_a_target_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    for target, message in (
        ({"type": "topic", "partition": 2}, "views.documents.target.partition: unknown key"),
        ({"type": "log"}, "views.documents.target: type is one of search, cache, warehouse, sql, .*topic"),
    ):
        file.write_text(json.dumps(SETTINGS | {"views": {"documents": VIEW | {"target": target}}}))
        with pytest.raises(ConfigError, match=message):
            load_config(file)


FOLD: dict[str, Any] = {"function": "shop.accounts:apply", "order": ["no"], "columns": {"balance": "numeric(12,2)"}}


@pytest.mark.parametrize(
    "type_name",
    ["text", "numeric(12, 2)", "timestamp(3) with time zone", "character varying(5)[]", "int[][]", 'shop."Mood"'],
)
def test_columns_have_types(type_name: str) -> None:
    assert FoldConfig.model_validate(FOLD | {"columns": {"größe": type_name}}).columns == {"größe": type_name}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"function": "apply"}, "does not name a function: write module:function"),
        ({"function": "shop/accounts.py:apply"}, "does not name a function"),
        ({"order": [False]}, 'write a column of this name as "no"'),
        ({"columns": {"a": "text", True: "text"}}, 'write a column of this name as "no"'),
        ({"order": []}, "at least 1 item"),
        ({"order": ["no", "no"]}, "listed twice in order"),
        ({"columns": {}}, "at least 1 item"),
        ({"columns": {"a b": "text"}}, "can't be a column's name"),
        ({"columns": {"a": "text); DROP TABLE x"}}, "not the name of a PostgreSQL type"),
        ({"columns": {"a": ""}}, "not the name of a PostgreSQL type"),
        ({"colums": {}}, "Extra inputs"),
    ],
)
def test_a_fold_that_says_nothing_usable_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        FoldConfig.model_validate(FOLD | changes)


def test_a_column_is_not_in_the_key_too() -> None:
    view = {"base": "copy", "sql": "SELECT 1", "key": ["balance"], "target": {"type": "topic"}, "fold": FOLD}
    with pytest.raises(ValidationError, match="balance is a column of the key"):
        ViewConfig.model_validate(view)
    assert ViewConfig.model_validate(view | {"key": ["id"]}).fold == FoldConfig.model_validate(FOLD)

"""Patterns over tables, and the configurations that have them."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.config_file import Config
from cdc.config.masking import Mask
from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.config.table_choice import TableChoice, matches
from cdc.model.events import TableId
from cdc.model.table_state import SelectionRecord


def configured(**source: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "source": {"dsn": "host=db dbname=shop", **source},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
            **({"masking": source.pop("masking")} if "masking" in source else {}),
        }
    )


@pytest.mark.parametrize(
    ("pattern", "name", "is_matched"),
    [
        ("public.*", "public.orders", True),
        ("public.*", "private.orders", False),
        ("tenant_*.orders", "tenant_7.orders", True),
        ("tenant_*.orders", "tenant_7.orders_old", False),
        ("tenant_?.orders", "tenant_17.orders", False),
        ("*", "public.Orders", True),
        ("public.o*", "public.Orders", False),
        ("^tenant_[0-9]+[.]orders$", "tenant_17.orders", True),
        ("^tenant_[0-9]+[.]orders$", "tenant_x.orders", False),
        ("^public[.](a|b)$", "public.ab", False),
        ("public.orders", "public.orders", True),
        ("public.orders", "public_orders.x", False),
    ],
)
def test_a_pattern_matches_the_whole_name(pattern: str, name: str, is_matched: bool) -> None:
    assert matches(pattern, TableId.parse(name)) == is_matched


def test_names_go_before_excludes_and_patterns_take_no_system_tables() -> None:
    choice = TableChoice(("public.kept", "*"), ("public.k*",))
    assert choice.names == (TableId("public", "kept"),)
    taken = [name for name in ("public.kept", "public.kid", "public.a") if choice.takes(TableId.parse(name))]
    assert taken == ["public.kept", "public.a"]
    assert not choice.matches(TableId("public", "kept")), "it is named"
    for system in ("pg_catalog.pg_class", "information_schema.tables", "pg_toast.pg_toast_1"):
        assert not choice.takes(TableId.parse(system))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"tables": ["^public[.]a"]}, "must end with \\$"),
        ({"tables": ["^public[.](a$"]}, "is not a regular expression"),
        ({"tables": ["orders"]}, "is not schema.table"),
        ({"tables": ["pg_catalog.pg_class"]}, "a table of PostgreSQL itself"),
        ({"tables": ["public.a"], "exclude_tables": ["public.b"]}, "exclude_tables is for patterns"),
        ({"tables": ["public.a", "public.*"], "exclude_tables": ["public.a"]}, "in tables and in exclude_tables"),
        ({"tables": ["public.*"], "key_columns": {"private.a": ["id"]}}, "which is not in tables"),
        (
            {"tables": ["public.*"], "exclude_tables": ["public.a"], "key_columns": {"public.a": ["id"]}},
            "not in tables",
        ),
        ({"tables": ["public.*"], "matched": ["public.a"]}, "source.matched is filled"),
        ({"tables": []}, "at least 1 item"),
    ],
)
def test_a_mistake_is_named(source: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        configured(**source)


def test_known_tables_of_patterns_are_those_of_the_source() -> None:
    config = configured(tables=["public.named", "public.*"], key_columns={"public.log": []})
    assert config.source.table_ids == (TableId("public", "named"),)
    record = SelectionRecord(include=("public.*",), exclude=(), tables=("public.named", "public.b", "public.log"))
    now = config.in_force(record).source
    assert list(map(str, now.table_ids)) == ["public.named", "public.b", "public.log"]
    assert list(map(str, now.stored_table_ids)) == ["public.named", "public.b"]
    assert config.in_force(None) is config
    assert config.source.keyless == {TableId("public", "log")}
    assert now.is_named(TableId("public", "log")) and not now.is_named(TableId("public", "b"))


def test_a_mask_is_for_a_table_that_a_pattern_may_take_later() -> None:
    made = {
        "source": {"dsn": "host=db", "tables": ["public.*"]},
        "kafka": {"bootstrap_servers": "k:9092"},
        "topics": {"prefix": "shop"},
    }
    config = PipelineConfig.model_validate(made | {"masking": {"truncate": {"public.users.mail": 3}}})
    assert config.format_options.masks == (Mask(TableId("public", "users"), "mail", "truncate", 3),)
    with pytest.raises(ValidationError, match=r"private.users.mail, which is not a column of source.tables"):
        PipelineConfig.model_validate(made | {"masking": {"truncate": {"private.users.mail": 3}}})


@pytest.mark.parametrize("dsn", ["host=db port=5432 dbname=shop user=u", "postgresql://u@db/shop"])
def test_patterns_never_capture_what_a_sink_writes(dsn: str) -> None:
    def checked(table: str, url: str) -> Config:
        return Config.model_validate(
            {
                "source": {"dsn": dsn, "tables": [table]},
                "kafka": {"bootstrap_servers": "k:9092"},
                "topics": {"prefix": "shop"},
                "sinks": {"copies": {"type": "sql", "url": url}},
            }
        )

    with pytest.raises(ValidationError, match=r"copies is in the database that source.dsn names"):
        checked("public.*", "postgresql://other@db:5432/shop")
    assert checked("public.*", "postgresql://other@db:5432/copies")
    assert checked("public.orders", "postgresql://other@db:5432/shop")


def test_patterns_of_sinks_and_comparisons_may_be_for_tables_to_come() -> None:
    made = {
        "source": {"dsn": "host=db dbname=shop", "tables": ["public.*"]},
        "kafka": {"bootstrap_servers": "k:9092"},
        "topics": {"prefix": "shop"},
    }
    cache = {"type": "cache", "url": "redis://c"}
    sinks = {"cache": {**cache, "tables": ["public.orders", "public.o*"]}}
    assert Config.model_validate(made | {"sinks": sinks, "verify": {"tables": ["public.o*"]}})
    with pytest.raises(ValidationError, match=r"private.orders matches no table"):
        Config.model_validate(made | {"sinks": {"cache": {**cache, "tables": ["private.orders"]}}})
    with pytest.raises(ValidationError, match=r"verify.tables: private.orders matches no table"):
        Config.model_validate(made | {"verify": {"tables": ["private.orders"]}})


def test_matched_tables_are_sorted_and_without_those_that_are_named() -> None:
    source = SourceConfig.model_validate({"dsn": "", "tables": ["public.b", "public.*"]})
    found = [TableId("public", name) for name in "cba"]
    assert source.with_matched(found).matched == ("public.a", "public.c")

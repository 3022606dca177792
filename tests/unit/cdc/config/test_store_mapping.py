"""Patterns of tables, and fingerprints of mappings."""

from typing import Any

from cdc.config.stores import CacheConfig, SearchConfig
from cdc.model.events import TableId


def test_patterns_say_which_tables_a_store_holds_and_in_which_shape() -> None:
    section = SearchConfig.model_validate(
        {
            "url": "http://s",
            "tables": ["public.*", "audit.log"],
            "exclude_tables": ["public.secret*"],
            "mapping": {"public.orders": {"exclude": ["a"]}, "public.*": {"exclude": ["b"]}},
        }
    )
    held = [TableId("public", "orders"), TableId("audit", "log"), TableId("public", "secrets"), TableId("x", "y")]
    assert [section.holds(table) for table in held] == [True, True, False, False]
    assert section.mapped(TableId("public", "orders"))[1].exclude == ("a",), "the first entry that matches counts"
    assert section.mapped(TableId("public", "lines"))[1].exclude == ("b",)
    assert section.mapped(TableId("audit", "log"))[1].is_identity


def test_a_fingerprint_differs_where_rows_do() -> None:
    def mark(**mapping: Any) -> dict[str, str]:
        section = CacheConfig.model_validate({"url": "redis://c", "mapping": {"public.orders": mapping}})
        return section.fingerprints([TableId("public", "orders")])

    assert mark() == {}
    mask = {"hash": ["a"], "hash_key": "k" * 16}
    marks = [
        mark(exclude=["a"]),
        mark(include=["a"]),
        mark(rename={"a": "b"}),
        mark(constants={"a": "1"}),
        mark(constants={"a": 1}),
        mark(where="a"),
        mark(mask=mask),
        mark(mask=mask | {"hash_key": "l" * 16}),
    ]
    assert len({message["public.orders"] for message in marks}) == len(marks)
    assert mark(exclude=["a", "b"]) == mark(exclude=["b", "a"])

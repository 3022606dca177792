"""Which tables patterns take: when the configuration takes effect, and later."""

from typing import Any

import pytest

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.table_state import SelectionRecord
from cdc.model.topics import Topics
from cdc.tables.matching import Matches, idle_patterns, match, require_tables, selection_of

TOPICS = Topics("shop")


def source_of(*tables: str, **options: Any) -> SourceConfig:
    return SourceConfig.model_validate({"dsn": "", "tables": tables, **options})


def ids(*names: str) -> list[TableId]:
    return [TableId.parse(name) for name in names]


def recorded(source: SourceConfig, *tables: str) -> SelectionRecord:
    return selection_of(source.with_matched(ids(*tables)))


def taken(found: Matches) -> list[str]:
    return list(map(str, found.taken))


def test_all_that_match_when_the_configuration_takes_effect_are_taken() -> None:
    for policy in ("capture", "ignore", "stop"):
        source = source_of("public.named", "public.*", exclude_tables=["public.tmp_*"], new_tables=policy)
        found = match(source, ids("public.b", "public.a", "public.tmp_1", "other.c", "public.named"), None, TOPICS)
        assert (taken(found), found.stopped, found.ignored) == (["public.a", "public.b"], {}, ())
        assert [str(t) for t in found.apply_to(source).table_ids] == ["public.named", "public.a", "public.b"]


@pytest.mark.parametrize(
    ("policy", "expected", "stopped", "ignored"),
    [
        ("capture", ["public.a", "public.new"], [], []),
        ("ignore", ["public.a"], [], ["public.new"]),
        ("stop", ["public.a", "public.new"], ["public.new"], []),
    ],
)
def test_the_option_decides_about_tables_that_begin_to_match(
    policy: str, expected: list[str], stopped: list[str], ignored: list[str]
) -> None:
    source = source_of("public.*", new_tables=policy)
    found = match(source, ids("public.new", "public.a"), recorded(source, "public.a"), TOPICS)
    assert (taken(found), list(map(str, found.stopped)), list(map(str, found.ignored))) == (expected, stopped, ignored)
    assert all(error.is_held and "cdc table start" in error.hint for error in found.stopped.values())
    assert taken(found.capturable) == [name for name in expected if name not in stopped]


@pytest.mark.parametrize("policy", ["ignore", "stop"])
def test_a_table_that_was_captured_and_is_created_again_is_not_new(policy: str) -> None:
    """Seen: it was dropped and created again, and with new_tables: ignore it was captured no longer, or still was, as
    the catalog was looked at in between or not."""
    source = source_of("public.*", new_tables=policy)
    found = match(source, ids("public.a", "public.new"), recorded(source), TOPICS, ids("public.a", "other.b"))
    assert "public.a" in taken(found) and "public.a" not in map(str, (*found.stopped, *found.ignored))
    assert "public.new" in map(str, (*found.stopped, *found.ignored))


def test_a_table_that_a_changed_pattern_takes_was_asked_for() -> None:
    before = recorded(source_of("public.a*", exclude_tables=["public.ax"]), "public.a1")
    existing = ids("public.a1", "public.a2", "public.ax", "sales.b")
    wider = source_of("public.a*", "sales.*", new_tables="ignore")
    found = match(wider, existing, before, TOPICS)
    assert taken(found) == ["public.a1", "public.ax", "sales.b"]
    assert found.ignored == (TableId("public", "a2"),), "the former patterns took it not, although they match it"


def test_a_stopped_table_is_new_only_once() -> None:
    source = source_of("public.*", new_tables="stop")
    existing = ids("public.a", "public.new")
    first = match(source, existing, recorded(source, "public.a"), TOPICS)
    then = match(source, existing, selection_of(first.apply_to(source)), TOPICS)
    assert (taken(then), then.stopped) == (["public.a", "public.new"], {}), "its record says that it is stopped"


def test_no_more_tables_are_taken_than_allowed_and_new_ones_come_last() -> None:
    source = source_of("public.*", tables_max=2)
    found = match(source, ids("public.a", "public.b", "public.c"), recorded(source, "public.b", "public.c"), TOPICS)
    assert (taken(found), found.excess) == (["public.b", "public.c"], (TableId("public", "a"),))
    with pytest.raises(ConfigError, match=r"match 3 tables, more than source.tables_max \(2\)"):
        require_tables(source, found)


def test_tables_whose_topics_are_the_same_to_kafka_are_stopped_but_for_the_first() -> None:
    found = match(source_of("*"), ids("a.b_c", "a_b.c", "shop.x"), None, TOPICS)
    assert list(map(str, found.stopped)) == ["a_b.c"]
    assert "its topic shop.a_b.c is that of table a.b_c" in found.stopped[TableId("a_b", "c")].message
    named = match(source_of("a_b.c", "*"), ids("a.b_c", "a_b.c"), None, TOPICS)
    assert list(map(str, named.stopped)) == ["a.b_c"]
    long = match(source_of("*"), [TableId("s" * 63, "t" * 200)], None, TOPICS)
    assert "more than Kafka's 249 characters" in next(iter(long.stopped.values())).message


def test_patterns_that_match_nothing_are_named() -> None:
    source = source_of("public.*", "^x[.].*$")
    found = match(source, ids("public.a"), None, TOPICS)
    require_tables(source, found)
    assert idle_patterns(source, found) == ["^x[.].*$"]
    with pytest.raises(ConfigError, match=r"no table matches public\.\*, \^x"):
        require_tables(source, match(source, [], None, TOPICS))
    named = source_of("public.a", "x.*")
    require_tables(named, match(named, [], None, TOPICS))

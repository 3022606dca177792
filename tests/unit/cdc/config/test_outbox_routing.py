"""Topics and placements, in Debezium's syntax."""

import pytest

from cdc.config.outbox_routing import Placement, TopicRoute, is_topic, parse_placements


@pytest.mark.parametrize(
    ("regex", "replacement", "value", "topic"),
    [
        ("(?<routedByValue>.*)", "outbox.event.${routedByValue}", "order", "outbox.event.order"),
        ("([a-z]+)-(\\d+)", "$2.$1", "order-17", "17.order"),
        ("(.*)", "$12", "a", "a2"),
        ("(.*)", "\\$1", "a", "$1"),
        ("my[.]", "your.", "my.order", "my.order"),  # matched in part only: the value is the topic
        ("(a)|(b)", "$1x", "b", "x"),
        ("(?<x>a)\\k<x>", "${x}", "aa", "a"),
    ],
)
def test_topics_are_named_as_java_would(regex: str, replacement: str, value: str, topic: str) -> None:
    assert TopicRoute(regex, replacement)(value) == topic


@pytest.mark.parametrize(("regex", "replacement"), [("(", "x"), ("a", "$1"), ("a", "${b}"), ("a", "$"), ("a", "b\\")])
def test_what_is_no_regex_or_names_no_group_is_refused(regex: str, replacement: str) -> None:
    with pytest.raises(ValueError, match=r"route\.topic\."):
        TopicRoute(regex, replacement)


def test_placements_are_read_with_and_without_alias() -> None:
    assert parse_placements(" type:header:eventType , part:PARTITION,a:envelope") == (
        Placement("type", "header", "eventType"),
        Placement("part", "partition", "part"),
        Placement("a", "envelope", "a"),
    )
    assert parse_placements("") == ()


@pytest.mark.parametrize("text", ["type", "type:nowhere", ":header", "a:header:b:c"])
def test_what_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not column:header"):
        parse_placements(text)


def test_only_what_kafka_takes_is_a_topic() -> None:
    assert [is_topic(name) for name in ("a.B-c_1", "", ".", "..", "a b", "ä", "x" * 250)] == [True, *[False] * 6]

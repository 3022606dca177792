"""Tables that would share a topic are told by name, with the way out."""

import pytest

from cdc.config.config_file import problem_of_topics
from cdc.model.events import TableId
from cdc.model.topics import Topics

TOPICS = Topics("shop")
NEXT = "; capture one of them under another topics.prefix and slot"


def message(*tables: str, topics: Topics = TOPICS) -> str | None:
    return problem_of_topics(topics, [TableId.parse(table) for table in tables])


def test_names_of_usual_tables_are_well() -> None:
    assert message("public.orders", "public.order_lines", "sales.orders", "public.state", "public.control") is None
    assert problem_of_topics(TOPICS, [TableId("s", "transaction"), TableId("s", "message")]) is None


@pytest.mark.parametrize(
    ("tables", "reported"),
    [
        (["a.b-c", "a.b$c", "a.b c"], "table a.b$c and table a.b c would share the topic shop.a.b_c"),
        (["a.größe", "a.gr__e"], "table a.größe and table a.gr__e would share the topic shop.a.gr__e"),
        (["a.b.c", "a.b_c"], "table a.b.c and table a.b_c would share a topic: to Kafka shop.a.b.c and shop.a.b_c are "
         "the same"),
        (["a_b.c", "a.b_c"], "table a_b.c and table a.b_c would share a topic: to Kafka shop.a_b.c and shop.a.b_c are "
         "the same"),
    ],
)  # fmt: skip
def test_two_tables_that_would_share_a_topic_are_named(tables: list[str], reported: str) -> None:
    assert message(*tables) == reported + NEXT


def test_no_table_can_have_a_topic_of_ours_unless_prefixes_meet() -> None:
    """A table's topic has two dots at least, ours have one; to Kafka a dot is an underscore."""
    assert all(topic.count(".") == 1 for topic in TOPICS.own)
    topics = Topics("__debezium-heartbeat")
    reported = message("_.debezium-heartbeat", topics=topics)
    assert reported is not None
    assert reported.startswith("Watershed's own topic __debezium-heartbeat.__debezium-heartbeat and table _.debezium-")


def test_a_name_that_is_too_long_is_told() -> None:
    assert message(f"a.{'b' * 242}") is None
    reported = message(f"a.{'b' * 243}")
    assert reported == f"topic name of a.{'b' * 243} is longer than Kafka's 249 characters: shorten topics.prefix"

"""The check that each table, view and sink has topics of its own. Pure."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cdc.model.events import TableId
from cdc.model.topics import Topics

NAME_CHARS_MAX = 249  # Kafka's


def problem(
    topics: Topics,
    tables: Iterable[TableId],
    sinks: Iterable[str] = (),
    views: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Returns the conflict between topics' names, with both names and the remedy; None if there is none.

    Characters that Kafka does not allow become `_`, so names can become the same. Kafka also treats names as the same
    that differ only in `.` and `_`: their metrics would collide, so the brokers refuse to create the second one.

    `views`: the topics of views by their names.
    """
    own = [*topics.own, *map(topics.sink_dead_letter, sinks)]
    owners = {_unified(topic): (topic, f"Watershed's own topic {topic}") for topic in own}
    for view, topic in views.items():
        other, owner = owners.setdefault(_unified(topic), (topic, f"view {view}"))
        if owner != f"view {view}":
            return f"{owner} and view {view} would share the topic {other}: set another name in the view's target"
    for table in tables:
        topic = topics.table(table)
        if len(topic) > NAME_CHARS_MAX:
            return f"topic name of {table} is longer than Kafka's {NAME_CHARS_MAX} characters: shorten topics.prefix"
        other, owner = owners.setdefault(_unified(topic), (topic, f"table {table}"))
        if owner == f"table {table}":
            continue
        clash = f"the topic {topic}" if other == topic else f"a topic: to Kafka {other} and {topic} are the same"
        return (
            f"{owner} and table {table} would share {clash}; capture one of them under another topics.prefix and slot"
        )
    return None


def _unified(topic: str) -> str:
    return topic.replace(".", "_")

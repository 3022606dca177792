"""Which dead letters are open, from the records of their topic: those of tasks that Spark has given up come late."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.rejected_rows import RejectedRow
from spark_jobs.dead_letters import OpenDeadLetters, record_of
from spark_jobs.rejections import Accepted, DeadLetterUpdates
from tests.unit.cdc.model.test_rejected_rows import ROW

KEY = "4/public.a/1"
Update = RejectedRow | Accepted | None


def letter(version: int) -> RejectedRow:
    return ROW.model_copy(update={"version": version})


class Topic:
    """The letters that one driver knows, and what it publishes again."""

    def __init__(self) -> None:
        self.letters = OpenDeadLetters(4)
        self.end = 0
        self.unread: list[Any] = []

    def write(self, update: Update, key: str = KEY) -> int:
        """A record of another process; its offset."""
        value, headers = record_of(update)
        offset, self.end = self.end, self.end + 1
        parts = {"key": key.encode(), "value": value, "headers": headers, "offset": offset, "topic": "letters"}
        self.unread.append(SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()}))
        return offset

    def publish(self, updates: DeadLetterUpdates) -> None:
        """By this driver."""
        self.letters.put(updates, {key: self.write(update, key) for key, update in updates.items()})

    def read(self) -> DeadLetterUpdates:
        """Returns what had to be published again."""
        unread, self.unread = self.unread, []
        for message in unread:
            self.letters.add(message)
        hidden = self.letters.hidden()
        if hidden:
            self.publish(hidden)
        return hidden


@pytest.mark.parametrize(
    ("records", "is_open", "again"),
    [
        ([letter(5), letter(6)], 6, None),
        ([letter(6), letter(5)], 6, letter(6)),  # the row would count as another version than the store lacks
        ([letter(6), Accepted(5)], 6, letter(6)),  # nobody would know that the row is missing
        ([letter(6), Accepted(5), Accepted(6)], None, None),
        ([letter(6), Accepted(5), letter(7)], 7, None),
        ([letter(6), Accepted(6)], None, None),
        ([letter(6), None], None, None),  # an operator, or a sweep
        ([letter(6), None, letter(5)], 5, None),
    ],
)
def test_a_record_of_an_older_version_hides_no_letter(
    records: list[Update], is_open: int | None, again: RejectedRow | None
) -> None:
    topic = Topic()
    for update in records:
        topic.write(update)
    expected = {} if again is None else {KEY: again}
    assert topic.read() == expected
    assert topic.read() == {}, "it is published once"
    assert topic.letters.versions == ({} if is_open is None else {KEY: is_open})


@pytest.mark.parametrize("later", [letter(8), Accepted(8)])
def test_what_a_task_publishes_while_its_letter_is_published_again_counts(later: RejectedRow | Accepted) -> None:
    topic = Topic()
    topic.write(letter(7))
    assert topic.read() == {}
    topic.write(later)  # not read yet
    topic.publish({KEY: letter(7)})
    assert topic.read() == {KEY: later}
    assert topic.read() == {}
    assert topic.letters.versions == ({KEY: 8} if isinstance(later, RejectedRow) else {})


def test_letters_of_other_generations_are_not_ours() -> None:
    topic = Topic()
    topic.write(letter(5), "3/public.a/1")
    assert topic.read() == {}
    assert topic.letters.versions == {}

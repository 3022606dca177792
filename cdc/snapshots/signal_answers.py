"""Answers to signals: published, kept for a day, then deleted. Pure."""

from collections.abc import Mapping
from typing import Final

from cdc.model.control import SignalAnswer, SignalsRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Signal

SIGNAL_S_MAX: Final = 86_400
"""Maximum age in seconds of a signal that takes effect. An older one may have had its effect already, and its answer
may be deleted."""

KEPT_S: Final = SIGNAL_S_MAX + 3_600  # longer than SIGNAL_S_MAX, because clocks differ
EXPIRED_MAX: Final = 500  # answers deleted at once
GIVEN_MAX: Final = 10_000  # an operator does not send more in a day; with more, answers are deleted earlier


class Answers:
    """The answers in the control topic, and those of this process."""

    def __init__(self, topics: Topics, known: Mapping[str, int]) -> None:
        """`known`: signal id → time of its answer, µs since 1970."""
        self._topics = topics
        self._given = dict(sorted(known.items(), key=lambda given: given[1]))

    def has(self, signal: Signal) -> bool:
        """Returns whether the signal was answered already, by a process in state GAP."""
        return signal.identity in self._given

    def give(self, signal: Signal, answer: SignalAnswer, now_us: int) -> list[TopicRecord]:
        """Returns the records of the answer and of the offset behind the signal, for the Kafka transaction of its
        effect."""
        self._given[signal.identity] = now_us
        return [answer_record(self._topics, signal, answer, now_us), offset_record(self._topics, signal)]

    def expired(self, now_us: int) -> list[TopicRecord]:
        """Returns tombstones of answers that are older than KEPT_S or above GIVEN_MAX, a limited number at a time."""
        old: list[str] = []
        for identity, given_us in self._given.items():
            is_old = given_us < now_us - KEPT_S * 1_000_000
            if len(old) == EXPIRED_MAX or not (is_old or len(self._given) - len(old) > GIVEN_MAX):
                break
            old.append(identity)
        for identity in old:
            del self._given[identity]
        return [TopicRecord(self._topics.control, SignalAnswer.key_of(identity).encode(), None) for identity in old]


def refusal(signal: Signal, now_us: int) -> SignalAnswer | None:
    """Returns the answer to a signal that takes no effect, whatever it asks for: it is damaged or too old."""
    if signal.record is None:
        return SignalAnswer(is_accepted=False, message=signal.problem)
    if signal.record.requested_us < now_us - SIGNAL_S_MAX * 1_000_000:
        return SignalAnswer(is_accepted=False, message="it was sent more than a day ago", next="send it again")
    return None


def answer_record(topics: Topics, signal: Signal, answer: SignalAnswer, now_us: int) -> TopicRecord:
    value = answer.model_copy(update={"answered_us": now_us}).encode()
    return TopicRecord(topics.control, SignalAnswer.key_of(signal.identity).encode(), value)


def offset_record(topics: Topics, signal: Signal) -> TopicRecord:
    """Returns the record of the next signal's offset, for the state topic. Signals below it have had their effect, or
    were refused."""
    return SignalsRecord(offset=signal.offset + 1).to(topics.state)

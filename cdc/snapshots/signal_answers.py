"""Answers to signals: given, kept for a day, then taken back. Pure."""

from collections.abc import Mapping
from typing import Final

from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Signal
from cdc.records.control import SIGNALS_KEY, SignalAnswer, SignalRecord, SignalsRecord, signal_key

SIGNAL_S_MAX: Final = 86_400
"""How old a signal may be that takes effect. One that is met later, with its answer taken back, must not again."""

KEPT_S: Final = SIGNAL_S_MAX + 3_600  # longer, by what two clocks may differ
EXPIRED_MAX: Final = 500  # taken back at once
GIVEN_MAX: Final = 10_000  # more signals in a day are no operator's: their answers are taken back earlier


class Answers:
    """Those that control holds, and those that this process gives."""

    def __init__(self, topics: Topics, known: Mapping[str, int]) -> None:
        """`known`: signal id → when it was answered, µs since 1970."""
        self._topics = topics
        self._given = dict(sorted(known.items(), key=lambda given: given[1]))

    def has(self, signal: Signal) -> bool:
        """Whether it was answered: by another process, in state GAP."""
        return signal.identity in self._given

    def give(self, signal: Signal, answer: SignalAnswer, now_us: int) -> list[TopicRecord]:
        """The answer, and that the next session reads on behind the signal: for the Kafka transaction of its effect."""
        self._given[signal.identity] = now_us
        return [answer_record(self._topics, signal, answer, now_us), self.passed_over(signal)]

    def passed_over(self, signal: Signal) -> TopicRecord:
        """That the next session reads on behind it."""
        return offset_record(self._topics, signal)

    def expired(self, now_us: int) -> list[TopicRecord]:
        """Tombstones of what is older than a day, or more than can be kept; some at a time."""
        old: list[str] = []
        for identity, given_us in self._given.items():
            is_old = given_us < now_us - KEPT_S * 1_000_000
            if len(old) == EXPIRED_MAX or not (is_old or len(self._given) - len(old) > GIVEN_MAX):
                break
            old.append(identity)
        for identity in old:
            del self._given[identity]
        return [TopicRecord(self._topics.control, signal_key(identity).encode(), None) for identity in old]


def is_late(signal: SignalRecord, now_us: int) -> bool:
    """Whether it was sent so long ago that it is refused."""
    return signal.requested_us < now_us - SIGNAL_S_MAX * 1_000_000


def too_late() -> SignalAnswer:
    return SignalAnswer(is_accepted=False, message="it was sent more than a day ago", next="send it again")


def answer_record(topics: Topics, signal: Signal, answer: SignalAnswer, now_us: int) -> TopicRecord:
    """For control."""
    told = answer.model_copy(update={"answered_us": now_us})
    return TopicRecord(topics.control, signal_key(signal.identity).encode(), told.encode())


def offset_record(topics: Topics, signal: Signal) -> TopicRecord:
    """For state: signals up to this one have had their effect, or were refused."""
    return TopicRecord(topics.state, SIGNALS_KEY.encode(), SignalsRecord(offset=signal.offset + 1).encode())

"""Answers to signals."""

from cdc.model.control import SignalAnswer, SignalRecord, SignalsRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Signal
from cdc.snapshots.signal_answers import EXPIRED_MAX, GIVEN_MAX, KEPT_S, Answers, refusal

TOPICS = Topics("shop")
NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000
SIGNAL = Signal("s9", 3, SignalRecord(action="pause", requested_us=NOW_US), "")


def test_an_answer_goes_with_the_offset_behind_its_signal() -> None:
    answers = Answers(TOPICS, {})
    assert not answers.has(SIGNAL)
    answer, offset = answers.give(SIGNAL, SignalAnswer(is_accepted=True, message="paused"), NOW_US)
    assert (answer.topic, answer.key) == (TOPICS.control, b"signal/s9")
    reported = SignalAnswer(is_accepted=True, message="paused", answered_us=NOW_US)
    assert SignalAnswer.decode(answer.value or b"", "control") == reported
    assert SignalsRecord.decode(offset.value or b"", "state").offset == 4
    assert answers.has(SIGNAL)


def test_answers_are_taken_back_after_a_day_oldest_first_and_some_at_a_time() -> None:
    known = {"new": NOW_US - DAY_US} | {f"s{number}": number for number in reversed(range(EXPIRED_MAX + 5))}
    answers = Answers(TOPICS, known)
    first, second, third = (answers.expired(NOW_US) for _ in range(3))
    assert first[0] == TopicRecord(TOPICS.control, b"signal/s0", None)
    assert (len(first), len(second), third) == (EXPIRED_MAX, 5, [])
    assert answers.has(SIGNAL._replace(identity="new"))
    assert answers.expired(NOW_US - DAY_US + KEPT_S * 1_000_000) == [], "it is not older"
    assert answers.expired(NOW_US - DAY_US + KEPT_S * 1_000_000 + 1) == [
        TopicRecord(TOPICS.control, b"signal/new", None)
    ]


def test_no_signal_takes_effect_whose_answer_may_be_taken_back() -> None:
    """Where the state was lost signals come again: whoever finds no answer must not obey twice."""
    for age_us in (0, DAY_US, DAY_US + 1, 7 * DAY_US):
        answers = Answers(TOPICS, {"s9": NOW_US - age_us})
        answers.expired(NOW_US)
        sent = SignalRecord(action="heal", requested_us=NOW_US - age_us)
        refused = refusal(SIGNAL._replace(record=sent), NOW_US)
        assert answers.has(SIGNAL) or (refused is not None and not refused.is_accepted)


def test_a_signal_takes_effect_for_a_day() -> None:
    young, old = (SignalRecord(action="heal", requested_us=NOW_US - age_us) for age_us in (DAY_US, DAY_US + 1))
    assert refusal(SIGNAL._replace(record=young), NOW_US) is None
    refused = refusal(SIGNAL._replace(record=old), NOW_US)
    assert refused is not None and (refused.message, refused.next) == (
        "it was sent more than a day ago",
        "send it again",
    )


def test_a_signal_that_can_not_be_read_is_refused_and_a_sound_one_is_not() -> None:
    assert refusal(SIGNAL, NOW_US) is None
    assert refusal(Signal("s9", 3, None, "no JSON"), NOW_US) == SignalAnswer(is_accepted=False, message="no JSON")


def test_more_answers_than_can_be_kept_are_taken_back_the_oldest_first() -> None:
    answers = Answers(TOPICS, {f"s{number}": number for number in range(GIVEN_MAX + 3)})
    assert [record.key for record in answers.expired(GIVEN_MAX)] == [b"signal/s0", b"signal/s1", b"signal/s2"]
    assert answers.expired(GIVEN_MAX) == []

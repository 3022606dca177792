"""Everything mixed on real servers, with kills and a backlog: the short form of mixed_campaign."""

from pathlib import Path

import pytest

from tests.checker.journal import Entry
from tests.checker.records import Record
from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.mixed_campaign import mixed
from tests.mixed.judge import Written, events_are_the_ledger, foreign_values
from tests.mixed.servers import with_mixture
from tests.mixed.view import View


@pytest.mark.promise(1)
def test_what_is_mixed_comes_to_its_own_topics_over_kills_and_behind_a_backlog(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> None:
    made = with_mixture(postgres, kafka, fresh_database, unique, tmp_path, profile="debezium", bulk_rows=3_000)
    with made as captured:
        reported = mixed(captured, seed=7, kills=1, transactions=60, backlog=3_000, bulk_rows=3_000)
    assert reported["complaints"] == []


def entry(old: str | None, new: str | None, table: str = "public.heavy") -> Entry:
    rows = [None if big is None else {"id": 1, "v": "v", "big": big} for big in (old, new)]
    return Entry(1, 700, 100, table, "UPDATE", {"id": 1}, rows[0], {"id": 1}, rows[1])


def test_the_judge_expects_no_record_of_a_change_that_no_topic_holds() -> None:
    view, large = View(large_max=5), "x" * 6
    assert view.journal([entry("x", large), entry(None, large)]) == []
    assert len(view.journal([entry(large, large), entry(large, "x"), entry("x", large, "public.plain")])) == 3


def test_the_judge_expects_what_the_configuration_lets_through() -> None:
    row = {"id": 1, "v": "v", "big": "b" * 100, "hidden": "h", "x1": "comes and goes"}
    assert View(5).row("public.masked", row) == {"id": 1, "v": "v", "big": "b" * 30}
    assert View(5).row("public.plain", row) == {"id": 1, "v": "v", "big": "b" * 100}


def event(identity: str, value: bytes | None, key: str = "1", topic: str = "events") -> Record:
    return Record(topic, 0, 0, key.encode(), value, (("id", identity.encode()),))


def written(identity: str, payload: bytes | None, *, is_dead: bool = False) -> Written:
    return Written(identity, "letters" if is_dead else "events", "1", payload, is_dead)


def test_the_judge_sees_events_that_are_lost_doubled_changed_strange_or_out_of_order() -> None:
    ledger = [written("a", b""), written("b", None), written("c", b"x", is_dead=True)]
    letter = event("c", b'{"event":{"aggregateid":"1"}}', key="c", topic="letters")
    a, b = event("a", b""), event("b", None)

    def message(*records: Record) -> str:
        return "\n".join(events_are_the_ledger(ledger, records, ["events", "letters"]))

    assert message(a, b, letter) == ""
    assert "a of events is there 0 times" in message(b, letter)
    assert "b of events is there 2 times" in message(a, b, b, letter)
    assert "is b'y', written was b''" in message(event("a", b"y"), b, letter)
    assert "no event that was committed" in message(a, b, letter, event("d", b""))
    assert "behind a later one" in message(b, a, letter)
    assert "belongs into letters" in message(a, b, event("c", b"x"))


def test_the_judge_sees_values_in_topics_of_others() -> None:
    own = {"shop.public.plain": {"plain"}, "events": {"event"}}
    rows = [Record("shop.public.plain", 0, 0, b"1", b'{"v":"~plain 1~"}'), event("a", b"~event 2~")]
    assert list(foreign_values(rows, own)) == []
    assert "holds a value of plain" in "\n".join(foreign_values([event("a", b'{"v":"~plain 1~"}')], own))
    assert "holds a value of hidden" in "\n".join(foreign_values([Record("any", 0, 0, b"k", b"~hidden 1~")], own))

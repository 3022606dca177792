"""Where a generation continues: the store says how far it is, and whether it was filled from these topics."""

import pytest

from cdc.model.control import ProgressRecord
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import DELETES_KEPT_S
from spark_jobs.starting import (
    continued,
    first_position,
    has_lost_writes,
    included_again,
    is_foreign,
    is_too_old,
    parse_position,
    too_old_s,
    why_filled_again,
)

NOW_US = 10**15
OLD_S = too_old_s(DELETES_KEPT_S)
FIRST = first_position("search", 3, "h", [TableId("public", "a b")], NOW_US)


def noted(**fields: object) -> SinkRecord:
    return FIRST.model_copy(update=fields)


def test_a_note_is_read_as_it_was_written() -> None:
    assert parse_position(FIRST.encode().decode()) == FIRST
    assert parse_position(None) is None
    assert parse_position('{"another": "version"}') is None
    assert FIRST.sweeps == {"public.a%20b": 0}


@pytest.mark.parametrize(
    ("marker", "note", "history", "continues"),
    [
        (3, noted(), "h", True),
        (3, noted(), "other", False),  # the topics were created again
        (3, None, "h", False),  # it does not say how far it is
        (4, noted(), "h", False),  # the note of another generation
        (None, noted(), "h", False),  # tables are gone
    ],
)
def test_a_store_is_continued_only_if_it_says_how_far_it_is_in_these_topics(
    marker: int | None, note: SinkRecord | None, history: str, *, continues: bool
) -> None:
    assert continued(marker, note, history) == (note if continues else None)


def test_rows_of_other_topics_and_of_unknown_origin_are_foreign() -> None:
    assert not is_foreign(None, None, "h", NOW_US, OLD_S), "it holds nothing"
    assert is_foreign(3, None, "h", NOW_US, OLD_S)
    assert is_foreign(None, noted(), "other", NOW_US, OLD_S)
    assert not is_foreign(None, noted(), "h", NOW_US, OLD_S), "the cache restarted, with its rows"
    later = NOW_US + int(OLD_S * 1_000_000) + 1
    assert is_foreign(None, noted(), "h", later, OLD_S), "deletes may be gone from the topics"


def test_a_store_that_was_not_updated_while_topics_went_on_is_too_old() -> None:
    last = noted(end_offsets={"t": (5,)})
    published = ProgressRecord(
        epoch=1, seq=1, lsn=1, commit_ts_us=1, published_ts_us=1, end_offsets={"t": (6,), "u": (9,)}
    )
    later = NOW_US + int(OLD_S * 1_000_000) + 1
    assert is_too_old(last, published, later, OLD_S)
    assert not is_too_old(last, published, NOW_US, OLD_S)
    assert is_too_old(noted(end_offsets={"t": (6,)}), published, later, OLD_S), "rows of u may be there behind the note"
    assert not is_too_old(noted(end_offsets={"t": (6,), "u": (9,)}), published, later, OLD_S), (
        "nothing happened meanwhile"
    )
    assert not is_too_old(last, None, later, OLD_S)


def test_lost_writes_are_seen_by_the_older_note() -> None:
    assert not has_lost_writes(noted(job=(2, "a")), noted(job=(2, "a")))
    assert has_lost_writes(noted(job=(2, "a")), noted(job=(2, "a"), applied_ts_us=NOW_US + 1))
    assert has_lost_writes(noted(job=(2, "a")), noted(job=(3, "b"), applied_ts_us=NOW_US - 1))


def test_tables_that_are_no_longer_excluded_are_found() -> None:
    last = noted(excluded=("public.a", "public.b"))
    assert included_again(last, lambda table: table.name == "b") == [TableId("public", "b")]


def test_the_reason_is_for_an_operator() -> None:
    assert why_filled_again(3, 3, noted(), "other") == "it was filled from topics that no longer exist"
    assert why_filled_again(None, 3, noted(), "h") == "tables are gone, or their shapes have changed"
    assert why_filled_again(3, 3, None, "h") == "it does not hold the position that belongs to its rows"

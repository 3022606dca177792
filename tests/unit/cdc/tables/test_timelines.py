"""After a promotion the position continues only where the server's branch of the log has all that is published."""

from dataclasses import replace

import pytest

from cdc.model.control import PartialTransaction, PositionRecord, SourceIdentity
from cdc.model.errors import GapError, OldPrimaryError, ProtocolError, UnreachableError
from cdc.model.events import EPOCH_MAX
from cdc.model.lsn import Lsn
from cdc.ports.source_now import SourceNow
from cdc.tables.continuity import require_same_source
from cdc.tables.timelines import Branch, Ended, Primary, choose, follow, parse_history, parting, start_lsn

FILE = """\
# what led here
1\t0/1000\tno recovery target specified

2\t1/A0\tat restore point "before the accident"
"""


def source(timeline: int, *ended: tuple[int, int]) -> SourceIdentity:
    return SourceIdentity(
        system_identifier="7", timeline=timeline, database="shop", slot="watershed", branches=tuple(ended)
    )


def position(then: SourceIdentity, resume: int, published: int = 0, **more: object) -> PositionRecord:
    made = PositionRecord(
        phase="streaming",
        epoch=4,
        seq=50,
        resume_lsn=resume,
        published_lsn=published,
        source=then,
        publication="watershed:7:abc",
        protocol="proto_version=1",
    )
    return made.model_copy(update=more)


ON_1, ON_2, ON_3 = source(1), source(2, (1, 1000)), source(3, (1, 1000), (2, 2000))
TO_2, TO_3 = Branch(2, ((1, 1000),)), Branch(3, ((1, 1000), (2, 2000)))


def test_a_history_file_is_read() -> None:
    assert parse_history(FILE) == ((1, 0x1000), (2, 0x1_0000_00A0))
    assert parse_history("") == ()


@pytest.mark.parametrize("line", ["1", "one\t0/1\t", "1\tnever\tno reason", "\x00"])
def test_a_history_file_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError, match="timeline history"):
        parse_history(f"1\t0/1000\tno recovery target specified\n{line}\n")


@pytest.mark.parametrize(
    ("then", "now", "at"),
    [
        (ON_1, Branch(1), None),
        (ON_2, TO_2, None),
        (ON_3, TO_3, None),
        (ON_1, TO_2, 1000),  # promoted
        (ON_1, TO_3, 1000),  # twice in a row
        (ON_2, TO_3, 2000),  # once more; also a failback
        (ON_1, Branch(5, ((1, 1000),)), 1000),  # numbers may be left out
        (ON_2, Branch(3, ((1, 900),)), 900),  # promoted from the old primary, before ours was
        (ON_2, Branch(3, ((1, 1100),)), 1000),  # after ours was
        (ON_2, Branch(2, ((1, 900),)), 900),  # the same number, reached in another way: a restore
        (ON_2, Branch(3, ((1, 1000),)), 1000),  # at the same point, under another number
        (ON_2, Branch(1), 1000),  # the old primary
        (ON_3, Branch(2, ((1, 1000),)), 2000),
        (ON_2, Branch(3, ()), 0),  # no history at all
        (source(2), TO_2, None),  # written before branches were recorded
        (source(2), TO_3, 2000),
        (source(2), Branch(3, ((1, 1000),)), 0),
        (ON_2, Branch(2, None), None),  # the server lost the file
        (ON_2, Branch(3, None), 0),
    ],
)
def test_branches_part_at_the_first_difference(then: SourceIdentity, now: Branch, at: int | None) -> None:
    assert parting(then, now) == at


BEGUN = PartialTransaction(commit_lsn=990, xid=7, next_index=3)
LATE = PartialTransaction(commit_lsn=1000, xid=7, next_index=3)


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    ("before", "now", "resume"),
    [
        (position(ON_1, 900), TO_2, 900),
        (position(ON_1, 1), TO_3, 1),  # behind a backlog
        (position(ON_1, 1000), TO_2, 1000),  # the last transaction ends where the branches part
        (position(ON_1, 900, 800), TO_2, 900),
        (position(ON_1, 1010, 1000), TO_2, 1000),  # keepalives alone went on
        (position(ON_1, 900, partial=BEGUN), TO_2, 900),  # its commit record is in the common past
        (position(ON_1, 1000), TO_3, 1000),  # nobody was there for the first of two promotions
        (position(ON_2, 1500), TO_3, 1500),
        (position(ON_2, 850), Branch(2, ((1, 900),)), 850),  # restored to a time before which we had stopped
    ],
)
def test_a_promoted_server_that_has_everything_is_followed(before: PositionRecord, now: Branch, resume: int) -> None:
    after = follow(before, now)
    assert (after.epoch, after.seq, after.resume_lsn) == (5, 0, resume)
    assert (after.source.timeline, after.source.branches) == (now.timeline, now.ended)
    assert after.partial == before.partial
    assert after.published_lsn == after.published_below == before.published_below <= (parting(before.source, now) or 0)
    assert after.read_below <= after.published_lsn, "nothing that was read again is newer"
    assert start_lsn(before, now) == resume
    assert follow(after, now) == after


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    ("before", "now", "phantom"),
    [
        (position(ON_1, 1001), TO_2, (1000, 1001)),
        (position(ON_1, 1500, 1200), TO_2, (1000, 1200)),
        (position(ON_1, 900, 1200), TO_2, (1000, 1200)),  # values were read again from rows that are gone
        (position(ON_1, 900, partial=LATE), TO_2, (1000, 1001)),  # the switch point is within it
        (position(ON_1, 1500), TO_3, (1000, 1500)),
        (position(ON_2, 1500), Branch(3, ((1, 1100),)), (1000, 1500)),
        (position(ON_2, 950), Branch(2, ((1, 900),)), (900, 950)),
        (position(ON_2, 950), Branch(3, ()), (0, 950)),
        (position(source(2), 950), Branch(3, ((1, 1000),)), (0, 950)),
    ],
)
def test_what_never_happened_on_the_server_is_a_gap_with_its_range(
    before: PositionRecord, now: Branch, phantom: tuple[int, int]
) -> None:
    with pytest.raises(GapError) as gap:
        follow(before, now)
    assert gap.value.phantom == phantom
    assert "cdc snapshot heal" in gap.value.hint
    assert start_lsn(before, now) <= before.resume_lsn


def test_the_range_is_in_the_message() -> None:
    with pytest.raises(GapError) as gap:
        follow(position(ON_1, 0x1500), Branch(2, ((1, 0x1000),)))
    assert gap.value.message == (
        "the server is on timeline 2, which parts from the published history at 0/1000, but changes up to 0/1500 are "
        "published: those from 0/1000 to 0/1500 never happened here (the promoted standby was behind, or the database "
        "was restored)"
    )


@pytest.mark.parametrize(("then", "now"), [(ON_2, Branch(1)), (ON_3, TO_2), (ON_3, Branch(2, ((1, 900),)))])
def test_an_old_primary_is_not_followed_even_if_nothing_was_published_since(then: SourceIdentity, now: Branch) -> None:
    with pytest.raises(OldPrimaryError, match="an old primary, or an older copy, answers") as gap:
        follow(position(then, 800), now)
    assert f"name the server on timeline {then.timeline}" in gap.value.hint


def test_a_server_without_its_history_proves_nothing() -> None:
    with pytest.raises(GapError, match=r"lost the history file of its timeline \(pg_wal/00000002.history\)"):
        follow(position(ON_1, 900), Branch(2, None))
    assert follow(position(ON_2, 1900), Branch(2, None)) == position(ON_2, 1900)


def test_branches_are_recorded_once_they_are_known() -> None:
    after = follow(position(source(2), 1900), TO_2)
    assert after == position(ON_2, 1900)


def test_the_last_epoch_has_no_next() -> None:
    with pytest.raises(GapError, match="largest possible epoch"):
        follow(position(ON_1, 900, epoch=EPOCH_MAX), TO_2)


# ---- with the slot

PROMOTED = SourceNow("7", 2, "shop", Lsn(5000), "reserved", Lsn(800), "watershed:7:abc", ((1, 1000),))


def now_with(**differs: object) -> SourceNow:
    return replace(PROMOTED, **differs)  # type: ignore[arg-type]


@pytest.mark.parametrize("confirmed", [None, Lsn(0), Lsn(800), Lsn(900)])
def test_a_slot_that_is_not_above_the_position_continues(confirmed: Lsn | None) -> None:
    after = require_same_source(position(ON_1, 900), now_with(slot_confirmed_lsn=confirmed))
    assert (after.epoch, after.resume_lsn, after.source.timeline) == (5, 900, 2)


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    ("now", "says", "next_step"),
    [
        (
            now_with(slot_wal_status=None, slot_confirmed_lsn=None),
            "slot watershed does not exist on the promoted server (timeline 2): changes that committed from 0/384 on",
            "cdc check says what the next promotion needs",
        ),
        (
            now_with(slot_wal_status="lost", slot_invalidation="rows_removed"),
            "slot watershed was invalidated (rows_removed) on the promoted server (timeline 2)",
            "cdc check says what the next promotion needs",
        ),
        (now_with(slot_wal_status="lost"), "slot watershed lost its WAL on the promoted server", "cdc check"),
        (now_with(slot_confirmed_lsn=Lsn(901)), "slot watershed was moved to 0/385, past the position", "heal"),
        (now_with(publication="watershed:8:abc"), "the publication was dropped or recreated", "heal"),
        (now_with(flush_lsn=Lsn(899)), "the source's log ends at 0/383, before the position", "heal"),
    ],
)
def test_a_promoted_server_that_can_not_continue_is_a_gap(now: SourceNow, says: str, next_step: str) -> None:
    with pytest.raises(GapError) as gap:
        require_same_source(position(ON_1, 900), now)
    assert gap.value.message.startswith(says)
    assert next_step in gap.value.hint


def test_a_slot_behind_the_switch_point_is_past_a_position_that_only_keepalives_moved_there() -> None:
    with pytest.raises(GapError, match="slot watershed was moved to 0/3F2, past the position of capture, 0/3E8"):
        require_same_source(position(ON_1, 1020, 900), now_with(slot_confirmed_lsn=Lsn(1010)))


# ---- several servers


def primary(name: str, timeline: int, *ended: tuple[int, int], system: str = "7") -> Primary:
    return Primary(name, system, Branch(timeline, tuple(ended)))


OLD, NEW, OTHER = primary("old", 1), primary("new", 2, (1, 1000)), primary("other", 9, system="8")
BEHIND = primary("behind", 3, (1, 500))


@pytest.mark.parametrize(
    ("found", "then", "name"),
    [
        ([OLD], position(ON_1, 900), "old"),
        ([OLD, NEW], position(ON_1, 900), "new"),  # both answer: the promoted one has everything
        ([NEW, OLD], None, "new"),
        ([OLD, NEW], position(ON_1, 1500), "old"),  # what is published is on the old one only
        ([NEW, BEHIND], position(ON_1, 900), "new"),
        ([BEHIND, NEW], position(ON_2, 1500), "new"),
        ([OLD], position(ON_2, 1500), "old"),  # the checks refuse it
        ([OTHER, OLD], position(ON_1, 900), "old"),  # another database
        ([OTHER], position(ON_1, 900), "other"),  # the checks refuse it
        ([OLD, NEW], position(ON_2, 1500), "new"),
        ([OLD, BEHIND], position(ON_2, 800), "behind"),  # neither has everything: the checks say what it lacks
        ([OLD, NEW], position(ON_2, 800), "new"),  # never back to a timeline that was left
    ],
)
def test_of_two_primaries_the_later_one_that_has_everything_is_read(
    found: list[Primary], then: PositionRecord | None, name: str
) -> None:
    assert choose(found, then).name == name


def test_two_primaries_on_one_timeline_can_not_be_told_apart() -> None:
    twin: Ended = ((1, 1000),)
    with pytest.raises(UnreachableError, match="are primaries on timeline 2: a, b") as error:
        choose([Primary("b", "7", Branch(2, twin)), Primary("a", "7", Branch(2, twin))], position(ON_1, 900))
    assert "shut down" in error.value.hint

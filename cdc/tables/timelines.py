"""Where the log of a position and that of a server part. Pure.

A promotion, and a restore to a point in time, begin a timeline: a new branch of the log. What was written to the old
branch behind the switch point is not part of the new one, and the same LSNs are used again. A server is on the branch
of a position if the way to its timeline is that of the position: the numbers of the timelines, and the LSN at which
each was left. A number alone proves nothing, because two servers can choose the same one.

A switch point is the end of a record. So a transaction is in the common past if its commit record begins below it, and
a transaction that goes on across it is not: its commit record is behind it on each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from cdc.model.control import PositionRecord, SourceIdentity
from cdc.model.errors import NEXT_AFTER_GAP, GapError, OldPrimaryError, ProtocolError, UnreachableError
from cdc.model.events import EPOCH_MAX
from cdc.model.lsn import Lsn, format_lsn, parse_lsn

Ended = tuple[tuple[int, int], ...]
"""(timeline, LSN at which it was left), oldest first."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The timeline that a server is on. `ended`: those that led to it; None if the server has lost its history file."""

    timeline: int
    ended: Ended | None = ()


def parse_history(text: str) -> Ended:
    """Reads the content of a timeline history file: a line for each timeline that was left, with its number, the LSN
    and a reason. Raises ProtocolError."""
    ended = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            number, lsn = line.split(maxsplit=2)[:2]
            ended.append((int(number), int(parse_lsn(lsn))))
        except ValueError as error:
            raise ProtocolError(f"a line of a timeline history file can't be read: {line!r}") from error
    return tuple(ended)


def parting(then: SourceIdentity, now: Branch) -> Lsn | None:
    """Returns the LSN at which the position's branch and the server's part; None if they are the same. 0 if they have
    nothing in common, or nothing is known of it."""
    return parting_of(Branch(then.timeline, then.branches), now)


def parting_of(then: Branch, now: Branch) -> Lsn | None:
    """Returns the LSN at which two branches part; see `parting`."""
    if now.ended is None:
        return None if now.timeline == then.timeline else Lsn(0)
    ours, theirs = [*(then.ended or ()), (then.timeline, None)], [*now.ended, (now.timeline, None)]
    if not then.ended:  # not recorded by an earlier version: what led to the position's timeline is not compared
        theirs = [entry for entry in theirs if entry[0] >= then.timeline]
    shared = 0
    for our, their in zip_longest(ours, theirs):
        if our is None or their is None or our[0] != their[0]:
            return Lsn(shared)
        if our[1] != their[1]:
            return Lsn(min(end for end in (our[1], their[1]) if end is not None))
        shared = our[1] or 0
    return None


def start_lsn(position: PositionRecord, now: Branch) -> Lsn:
    """Returns the LSN from which to stream. Where only keepalives moved the position past the point at which the
    branches part, it is that point: what commits behind it on the server's branch was not received."""
    switch = parting(position.source, now)
    return Lsn(position.resume_lsn if not switch else min(position.resume_lsn, switch))


def follow(position: PositionRecord, now: Branch) -> PositionRecord:
    """Returns the position on the server's branch: `position` itself, or, if the server was promoted, one of the next
    epoch, because LSNs of one branch must not be compared with those of another. Raises OldPrimaryError, and GapError
    if the branch lacks something that is published."""
    then, switch = position.source, parting(position.source, now)
    if switch is None:
        if now.ended and not then.branches:
            return position.model_copy(update={"source": then.model_copy(update={"branches": now.ended})})
        return position
    if now.timeline < then.timeline:
        raise OldPrimaryError(
            f"the server is on timeline {now.timeline}, the position on {then.timeline}: an old primary, or an older "
            "copy, answers",
            f"let source.dsn name the server on timeline {then.timeline}, and capture continues by itself; shut the "
            "old one down. If it is to be the source again: cdc snapshot heal reads all rows again, under a new epoch",
        )
    if now.ended is None:
        raise GapError(
            f"the server is on timeline {now.timeline}, the position on {then.timeline}, and the server has lost the "
            f"history file of its timeline (pg_wal/{now.timeline:08X}.history): nothing proves that it has what is "
            "published",
            NEXT_AFTER_GAP,
        )
    if position.published_below > switch:
        raise GapError(_phantom(position, now, switch), NEXT_AFTER_GAP, phantom=(switch, position.published_below))
    if position.epoch >= EPOCH_MAX:
        raise GapError(f"epoch {position.epoch} is the largest possible epoch", "start with a new topics.prefix")
    return position.model_copy(
        update={
            "epoch": position.epoch + 1,
            "seq": 0,
            "resume_lsn": min(position.resume_lsn, switch),
            "published_lsn": position.published_below,
            "read_lsn": min(position.read_below, switch),
            "source": then.model_copy(update={"timeline": now.timeline, "branches": now.ended}),
        }
    )


def _phantom(position: PositionRecord, now: Branch, switch: Lsn) -> str:
    published = format_lsn(Lsn(position.published_below))
    if not switch:
        return (
            f"the server is on timeline {now.timeline}, whose history does not contain timeline "
            f"{position.source.timeline}, up to {published} of which changes are published: it is another branch"
        )
    return (
        f"the server is on timeline {now.timeline}, which parts from the published history at {format_lsn(switch)}, "
        f"but changes up to {published} are published: those from {format_lsn(switch)} to {published} never happened "
        "here (the promoted standby was behind, or the database was restored)"
    )


# ---- a standby whose log is read


def require_can_follow(primary: Branch, standby: Branch, replayed: Lsn) -> None:
    """Raises UnreachableError if a standby that has replayed the log up to `replayed` does not follow this primary:
    then what is read and written there never is in the standby's log."""
    if standby.timeline > primary.timeline:
        raise UnreachableError(
            f"source.dsn leads to an old primary, on timeline {primary.timeline}: source.standby_dsn is on timeline "
            f"{standby.timeline}",
            "let source.dsn name all servers that may be the primary, that standby too, and shut the old one down",
        )
    switch = parting_of(standby, primary)
    if switch is None or (primary.timeline > standby.timeline and replayed <= switch):
        return  # it is on the primary's branch, or will take it
    raise UnreachableError(
        f"source.standby_dsn can't follow the primary, which is on timeline {primary.timeline}: their logs part at "
        f"{format_lsn(switch)}, and the standby has replayed {format_lsn(replayed)}",
        "make that standby again (pg_basebackup, pg_rewind): its slot is lost then, which is a gap",
    )


# ---- several servers


@dataclass(frozen=True, slots=True)
class Primary:
    """A server that accepts writes. `name`: host and port."""

    name: str
    system_identifier: str
    branch: Branch


def choose(primaries: Sequence[Primary], position: PositionRecord | None) -> Primary:
    """Returns the primary to read from: of those that contain what is published, the one on the highest timeline. If
    none contains it, the highest timeline, of which the checks of history say what it lacks. Raises UnreachableError
    if two can't be told apart. `primaries`: at least one."""
    ours = [one for one in primaries if position is None or one.system_identifier == position.source.system_identifier]
    ranked = sorted(ours or primaries, key=lambda one: (_contains(one, position), one.branch.timeline), reverse=True)
    first = ranked[0]
    equal = [
        one
        for one in ranked
        if (_contains(one, position), one.branch.timeline) == (_contains(first, position), first.branch.timeline)
    ]
    if len(equal) > 1:
        names = ", ".join(sorted(one.name for one in equal))
        raise UnreachableError(
            f"several servers of source.dsn are primaries on timeline {first.branch.timeline}: {names}",
            "shut down those that are not the primary: capture waits, because it can't know which one is",
        )
    return first


def _contains(primary: Primary, position: PositionRecord | None) -> bool:
    if position is None:
        return True
    if primary.system_identifier != position.source.system_identifier:
        return False
    if primary.branch.timeline < position.source.timeline:
        return False
    switch = parting(position.source, primary.branch)
    return switch is None or position.published_below <= switch

"""What a state of the model of chunks is made of: numbers, packed, because there are millions of them."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

ABSENT, WRONG, VISIBLE, COMING = range(4)  # a key's value, relative to the source
IDLE, FENCE, FENCED, LOOKED, BEGUN, READING, FENCE_AGAIN, DONE = range(8)  # stages of the snapshot
UNREAD, LOW, READ, MARKED, CAME, MERGED = range(6)  # of a chunk
WROTE, LOGGED, SEEN = range(3)  # of a transaction
NOT_YET, REMEMBERED, FORGOTTEN, UNKNOWN = range(4)  # what the consumer knows of it

BEGIN_MARK: Final = -1  # in the log; from 0 chunks' marks, from LOW_MARK their low ones
LOW_MARK: Final = 16
IS_TRANSACTION: Final = 1 << 30

# A transaction's bits: operation, phase, what is known of it, keys overwritten since, snapshots that do not see it
# (the table's, then each chunk's), whether the fence waits for it, and its rank among the versions.
PHASE, KNOWN, STALE, UNSEEN, FENCED_AT, RANK = 6, 8, 10, 14, 20, 21
FENCED_BIT: Final = 1 << FENCED_AT
UNSEEN_BITS: Final = 63 << UNSEEN
RANK_BITS: Final = 63 << RANK
PHASE_BITS: Final = 3 << PHASE
IS_SEEN: Final = SEEN << PHASE
KNOWN_BITS: Final = 3 << KNOWN
IS_UNKNOWN: Final = UNKNOWN << KNOWN

# A key's bits: whether it is visible in the source, its value as published, in the open chunk, and its version's rank.
PUBLISHED, ROW, VERSION = 1, 3, 5

OpKind = Literal["put", "delete", "move", "truncate", "reload"]


@dataclass(frozen=True, slots=True)
class Size:
    """What is gone through."""

    transactions: int
    crashes: int
    chunks: int = 2
    keys: int = 2
    forgets: int = 0  # how often keys of a transaction may be forgotten
    ranges: bool = False  # each chunk is a range of its own; otherwise one range is read ahead
    writing: bool = False  # transactions run for a while before their commit is in the log; else only locks are kept
    ops: tuple[OpKind, ...] = ("put", "delete", "move", "truncate", "reload")


@dataclass(frozen=True, slots=True)
class Rule:
    """What is built, and where controls differ."""

    drops: Literal["unseen", "between"] = "unseen"
    fences: Literal["always", "once", "never"] = "always"  # once: not after a crash
    floor: Literal["unseen", "mark", "early"] = "unseen"
    floors_fall: bool = False  # the last sweep's counts, also where an earlier one's was higher
    truncate_touches: bool = True
    moves_touch_both: bool = True
    reads_again: bool = True  # what may not be merged because keys were forgotten


OURS: Final = Rule()


class State(NamedTuple):
    transactions: int  # that may still begin
    crashes: int
    forgets: int
    stage: int
    early: int  # rank of the floor, as one who fixes it too early sees it
    keys: tuple[int, ...]
    chunks: tuple[int, ...]  # stage; for low watermarks also whether it came, and the keys touched since
    log: tuple[int, ...]  # that is still to be consumed: transactions and marks
    others: tuple[int, ...]  # transactions that run, or were consumed and still matter


class Op(NamedTuple):
    name: str
    present: int  # keys that must be there, as bits
    absent: int
    puts: int
    removes: int
    locks: int
    is_truncate: bool


def ops_of(kinds: tuple[OpKind, ...], keys: int) -> list[Op]:
    every = (1 << keys) - 1
    names = "abcd"[:keys]
    made: list[Op] = []
    for kind in kinds:
        for i, name in enumerate(names):
            bit = 1 << i
            if kind == "put":
                made.append(Op(f"put {name}", 0, 0, bit, 0, bit, False))
            elif kind == "delete":
                made.append(Op(f"delete {name}", bit, 0, 0, bit, bit, False))
            elif kind == "move":
                for j, other in enumerate(names):
                    if i != j:
                        made.append(Op(f"move {name} to {other}", bit, 1 << j, 1 << j, bit, bit | 1 << j, False))
            elif i == 0 and kind == "truncate":
                made.append(Op("truncate", 0, 0, 0, every, every, True))
            elif i == 0:
                made.append(Op("truncate and put a", 0, 0, 1, every & ~1, every, True))
    return made


def older(key: int) -> int:
    """Its values after another has become visible."""
    published, row = key >> PUBLISHED & 3, key >> ROW & 3
    if published >= VISIBLE:
        published -= 1  # visible becomes wrong, coming becomes visible
    if row == VISIBLE:
        row = WRONG
    return published << PUBLISHED | row << ROW | key >> VERSION << VERSION


def without(key: int, is_open: int) -> int:
    """An absent row has no version, a chunk that is not open no rows."""
    if not is_open:
        key &= ~(3 << ROW)
    return key if key >> PUBLISHED & 3 else key & 31


# ---- one form for each state


def settled(state: State, parts: list[int], floor_rule: str) -> State:
    """A fence that has nothing to wait for is passed; what can't matter any more is left out. `parts`: the keys of each
    chunk, as bits."""
    transactions, crashes, forgets, stage, early, keys, chunks, log, others = state
    if stage in (FENCE, FENCE_AGAIN):
        for t in (*log, *others):
            if t & FENCED_BIT and t > 0:
                break
        else:
            stage = FENCED if stage == FENCE else READING
    wanted = 1 if stage in (LOOKED, BEGUN) else 0
    open_keys = 0
    is_read_out = True
    for c, chunk in enumerate(chunks):
        if chunk != MERGED:
            is_read_out = False
            if chunk & 7 >= READ:
                wanted |= 2 << c
                open_keys |= parts[c]
    if is_read_out and stage == READING:
        stage = DONE
    kept = ~UNSEEN_BITS | wanted << UNSEEN
    log = tuple([t & kept if t >= IS_TRANSACTION else t for t in log])
    if others:
        wanted <<= UNSEEN
        # Visible, and seen by every open snapshot or not known: it can't matter any more.
        others = tuple(
            [t & kept for t in others if t & PHASE_BITS != IS_SEEN or (t & wanted and t & KNOWN_BITS != IS_UNKNOWN)]
        )
    if stage < READING:
        early, keys, others = _ranked(floor_rule, stage, early, keys, others)
    elif others:
        others = tuple([t & ~RANK_BITS for t in others])
    keys = tuple([without(key, open_keys >> k & 1) for k, key in enumerate(keys)])
    if len(others) > 1:
        others = tuple(sorted(others))
    return State(transactions, crashes, forgets, stage, early, keys, chunks, log, others)


def _ranked(
    rule: str, stage: int, early: int, keys: tuple[int, ...], others: tuple[int, ...]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Ranks without gaps, of what may become the floor."""
    has_looked = stage in (LOOKED, BEGUN)
    if rule == "mark" or (rule == "early" and has_looked):
        ranks = []
    elif has_looked:  # only the lowest counts
        ranks = sorted(t >> RANK & 63 for t in others if t & RANK_BITS and t >> UNSEEN & 1)[:1]
    else:
        ranks = sorted(t >> RANK & 63 for t in others if t & RANK_BITS and t & PHASE_BITS != IS_SEEN)
    if not ranks and not early:
        return 0, tuple([key & 31 for key in keys]), tuple([t & ~RANK_BITS for t in others])
    marks = sorted({*ranks, early} - {0})
    place = {rank: i + 1 for i, rank in enumerate(marks)}
    kept = set(ranks)
    others = tuple([t & ~RANK_BITS | (place[rank] if (rank := t >> RANK & 63) in kept else 0) << RANK for t in others])
    keys = tuple([key & 31 | sum(mark <= key >> VERSION for mark in marks) << VERSION for key in keys])
    return place.get(early, 0), keys, others

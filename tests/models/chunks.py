"""A model of chunks beside the stream, small enough that every order of events can be gone through.

A transaction takes the locks of its keys and writes; its commit record is appended to the log; later it becomes visible
and its locks are free. The reader waits at a fence, looks at the table and appends a mark, then for each chunk selects
what is visible and appends a mark. The consumer takes the log in order: events are published, and a chunk's rows when
its mark comes. It remembers which keys were touched since it began to, may forget them, and may die. In the end rows
with a version below the floor are swept away, and what was published must be the source's rows.

What keeps the states few, and why nothing is lost by it:

- A value is one of four: absent, the one that is visible, that of the key's transaction on its way (a locked key has
  only one), or wrong, which is any value that the key had and never has again.
- Versions are only compared with what may become the floor, so only those ranks are kept; once it is fixed, one bit.
- A transaction that is received, visible, and seen by every open snapshot can't matter any more and is left out.
  Those that still matter have no names, and no order but that of the log.
- The consumer commits each log entry as it takes it. A real one commits several at once, and dies in between: what it
  loses are published records that nobody saw, and its memory, as if it had died earlier and begun again just now.
- Stores begin with a wrong value under every key: whatever an absent one can spoil, that one spoils too.
- What the consumer takes from the log up to a mark, it takes at once with the mark, or before it dies or begins to
  remember; transactions become visible just before something is read or another one needs their locks: nobody notices
  when else they do. With `is_stepwise` every event is a step of its own; where both are possible, both find the same.
- When the last chunk is merged the run is judged: a key that the rest of the log touches comes right by that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from tests.models.states import (
    ABSENT,
    BEGIN_MARK,
    BEGUN,
    CAME,
    COMING,
    FENCE,
    FENCE_AGAIN,
    FENCED,
    FENCED_BIT,
    FORGOTTEN,
    IDLE,
    IS_TRANSACTION,
    KNOWN,
    LOGGED,
    LOOKED,
    LOW,
    LOW_MARK,
    MARKED,
    MERGED,
    NOT_YET,
    OURS,
    PHASE,
    PUBLISHED,
    RANK,
    RANK_BITS,
    READ,
    READING,
    REMEMBERED,
    ROW,
    SEEN,
    STALE,
    UNKNOWN,
    UNREAD,
    UNSEEN,
    UNSEEN_BITS,
    VERSION,
    VISIBLE,
    WRONG,
    WROTE,
    Op,
    Rule,
    Size,
    State,
    older,
    ops_of,
    settled,
)

Step = tuple[str, State]
Place = tuple[bool, int]  # of a transaction: whether it is received, and its index


@dataclass(slots=True)
class Model:
    size: Size
    rule: Rule = OURS
    is_stepwise: bool = False
    _ops: list[Op] = field(init=False)
    _touches: list[int] = field(init=False)  # keys that the memory holds for each operation, as bits
    _counts: list[bool] = field(init=False)  # whether it can lower the floor
    _parts: list[int] = field(init=False)  # keys of each chunk, as bits

    def __post_init__(self) -> None:
        size, rule = self.size, self.rule
        self._ops = ops_of(size.ops, size.keys)
        self._touches, self._counts = [], []
        for op in self._ops:
            touched = op.locks
            if op.is_truncate and not rule.truncate_touches:
                touched = op.puts
            if op.name.startswith("move") and not rule.moves_touch_both:
                touched = op.puts
            self._touches.append(touched)
            self._counts.append(not op.is_truncate or op.puts != 0)
        every = (1 << size.keys) - 1
        share = -(-size.keys // size.chunks)
        self._parts = [every & (((1 << share) - 1) << share * c) for c in range(size.chunks)]

    def beginnings(self) -> Iterator[State]:
        """Every set of rows that the source may have."""
        size = self.size
        for rows in range(1 << size.keys):
            keys = tuple((rows >> k & 1) | WRONG << PUBLISHED for k in range(size.keys))
            yield State(size.transactions, size.crashes, size.forgets, IDLE, 0, keys, (UNREAD,) * size.chunks, (), ())

    # ---- what may happen next

    def steps(self, state: State) -> list[Step]:
        """Every state that may follow, with what happened in words."""
        steps: list[Step] = []
        if self.is_stepwise:
            steps += [self._visible(state, frozenset({place})) for place, _ in self._logged(state)]
            if state.log:
                steps.append(self._consumed(state))
        for message, before in self._consumed_so_far(state):
            if before.log and before.log[0] < IS_TRANSACTION and not self.is_stepwise:
                steps.append(_joined(message, *self._consumed(before)))
            if state.stage == IDLE:
                after = self._settled(self._fenced(before._replace(stage=FENCE)))
                steps.append(_joined(message, "a snapshot is asked for", after))
            elif state.crashes:
                steps.append(_joined(message, "the consumer dies", self._crashed(before)))
        if state.stage in (FENCE, FENCED, LOOKED, READING, FENCE_AGAIN):
            for message, before in self._visible_some(state):
                self._read(message, before, steps)
        self._write(state, steps)
        if state.forgets:
            self._forget(state, steps)
        return steps

    def _consumed_so_far(self, state: State) -> Iterator[Step]:
        """As it is, and after each transaction before the next mark."""
        message = ""
        yield message, state
        while not self.is_stepwise and state.log and state.log[0] >= IS_TRANSACTION:
            message, state = _joined(message, *self._consumed(state))
            yield message, state

    # ---- transactions

    def _write(self, state: State, steps: list[Step]) -> None:
        """A transaction begins, or is logged."""
        others = state.others
        for i, t in enumerate(others):
            if t >> PHASE & 3 == WROTE:
                logged = (t & ~(3 << PHASE)) | LOGGED << PHASE
                after = state._replace(log=(*state.log, logged), others=others[:i] + others[i + 1 :])
                steps.append(("the commit is logged: " + self._ops[t & 63].name, self._settled(after)))
        if not state.transactions:
            return
        writing = 0
        for t in others:
            if t >> PHASE & 3 == WROTE:
                writing |= self._ops[t & 63].locks
        logged_ones = self._logged(state)
        views: dict[frozenset[Place], Step] = {}
        for number, op in enumerate(self._ops):
            locked = frozenset(place for place, t in logged_ones if self._ops[t & 63].locks & op.locks)
            if writing & op.locks or (locked and self.is_stepwise):
                continue
            if locked not in views:
                views[locked] = self._visible(state, locked)
            self._begin(*views[locked], number, steps)

    def _begin(self, message: str, state: State, number: int, steps: list[Step]) -> None:
        op = self._ops[number]
        rows = sum((key & 1) << k for k, key in enumerate(state.keys))
        if op.present & ~rows or op.absent & rows:
            return
        unseen = 1 if state.stage in (LOOKED, BEGUN) else 0
        for c, chunk in enumerate(state.chunks):
            if READ <= chunk & 7 < MERGED:
                unseen |= 2 << c
        made = number | IS_TRANSACTION | unseen << UNSEEN
        after = state._replace(transactions=state.transactions - 1)
        if self.size.writing:
            after = after._replace(others=(*state.others, made | WROTE << PHASE))
            steps.append(_joined(message, op.name, self._settled(after)))
        else:
            after = after._replace(log=(*state.log, made | LOGGED << PHASE))
            steps.append(_joined(message, op.name + ", and its commit is logged", self._settled(after)))

    def _logged(self, state: State) -> "list[tuple[Place, int]]":
        """Transactions that are not visible yet, with where they stand."""
        return [
            ((is_received, i), t)
            for is_received, entries in ((False, state.log), (True, state.others))
            for i, t in enumerate(entries)
            if t >= IS_TRANSACTION and t >> PHASE & 3 == LOGGED
        ]

    def _visible_some(self, state: State) -> Iterator[Step]:
        """As it is, and after each set of transactions has become visible."""
        yield "", state
        if not self.is_stepwise:
            places = [place for place, _ in self._logged(state)]
            for count in range(1, len(places) + 1):
                for chosen in combinations(places, count):
                    yield self._visible(state, frozenset(chosen))

    def _visible(self, state: State, places: "frozenset[Place]") -> Step:
        """After these have become visible."""
        if not places:
            return "", state
        entries = list(state.log), list(state.others)
        keys = list(state.keys)
        names = []
        changed = 0
        for is_received, i in places:
            t = entries[is_received][i]
            entries[is_received][i] = (t & ~(3 << PHASE | FENCED_BIT)) | SEEN << PHASE
            op = self._ops[t & 63]
            names.append(op.name)
            changed |= op.puts | op.removes
            for k, key in enumerate(keys):
                if (op.puts | op.removes) >> k & 1:
                    keys[k] = op.puts >> k & 1 | older(key)
        for i, t in enumerate(state.log):  # what these overwrote, and is still to be received
            if t >= IS_TRANSACTION and t >> PHASE & 3 == SEEN:
                entries[False][i] = t | (self._ops[t & 63].puts & changed) << STALE
        after = state._replace(keys=tuple(keys), log=tuple(entries[False]), others=tuple(entries[True]))
        return "becomes visible: " + ", ".join(sorted(names)), self._settled(after)

    # ---- the consumer

    def _consumed(self, state: State) -> Step:
        entry, log = state.log[0], state.log[1:]
        if entry >= IS_TRANSACTION:
            return self._received(state._replace(log=log), entry)
        if entry == BEGIN_MARK:
            return "the table's mark is received", self._begun(state._replace(log=log))
        chunks = list(state.chunks)
        if entry >= LOW_MARK:
            chunks[entry - LOW_MARK] |= 8
            return "a low mark is received", self._settled(state._replace(log=log, chunks=tuple(chunks)))
        chunks[entry] = chunks[entry] & ~7 | CAME
        after = self._merged(state._replace(log=log, chunks=tuple(chunks)), entry)
        return f"the mark of chunk {entry + 1} is received", self._settled(after)

    def _received(self, state: State, t: int) -> Step:
        number = t & 63
        op = self._ops[number]
        phase = t >> PHASE & 3
        is_floored = state.stage in (READING, FENCE_AGAIN)
        version = 1 if is_floored else self._top(state) + 1
        keys = list(state.keys)
        erased = 0 if op.is_truncate and self.rule.floors_fall else op.removes
        for k, key in enumerate(keys):
            if op.puts >> k & 1:
                value = COMING if phase == LOGGED else WRONG if t >> STALE >> k & 1 else VISIBLE
                keys[k] = key & (1 | 3 << ROW) | value << PUBLISHED | version << VERSION
            elif erased >> k & 1:
                keys[k] = key & (1 | 3 << ROW)
        known = UNKNOWN if state.stage == IDLE else t >> KNOWN & 3 or REMEMBERED
        rank = version if known != UNKNOWN and not is_floored and self._counts[number] else 0
        t = (t & ~(3 << KNOWN | RANK_BITS | 15 << STALE)) | known << KNOWN | rank << RANK
        chunks = state.chunks
        if self.rule.drops == "between":
            touched = self._touches[number] << 4
            chunks = tuple(chunk | touched if chunk & 8 and chunk & 7 < MERGED else chunk for chunk in chunks)
        after = state._replace(keys=tuple(keys), chunks=chunks, others=(*state.others, t))
        return "it is received: " + op.name, self._settled(after)

    def _top(self, state: State) -> int:
        top = max(state.early, *(key >> VERSION for key in state.keys))
        return max(top, *(t >> RANK & 63 for t in state.others)) if state.others else top

    def _begun(self, state: State) -> State:
        """The floor is fixed."""
        floor = self._top(state) + 1
        if self.rule.floor == "early":
            floor = state.early or floor
        elif self.rule.floor == "unseen":
            floor = min([floor, *self._unseen_ranks(state)])
        keys = tuple(key & 31 | (key >> VERSION >= floor) << VERSION for key in state.keys)
        return self._settled(state._replace(stage=READING, early=0, keys=keys))

    def _unseen_ranks(self, state: State) -> list[int]:
        return [t >> RANK & 63 for t in state.others if t >> RANK & 63 and t >> UNSEEN & 1]

    def _merged(self, state: State, chunk: int) -> State:
        """This chunk, or all whose turn it is."""
        if self.size.ranges:
            return self._merge(state, chunk)
        while (first := self._first_open(state)) is not None and state.chunks[first] & 7 == CAME:
            state = self._merge(state, first)
        return state

    def _first_open(self, state: State) -> int | None:
        return next((c for c, chunk in enumerate(state.chunks) if chunk & 7 != MERGED), None)

    def _merge(self, state: State, c: int) -> State:
        dropped = state.chunks[c] >> 4
        if self.rule.drops == "unseen":
            for t in state.others:
                if t >> UNSEEN >> c + 1 & 1:
                    known = t >> KNOWN & 3
                    if known == FORGOTTEN and self.rule.reads_again:
                        return self._given_up(state, [c] if self.size.ranges else range(c, self.size.chunks))
                    if known == REMEMBERED:
                        dropped |= self._touches[t & 63]
        keys = list(state.keys)
        for k, key in enumerate(keys):
            row = key >> ROW & 3
            if self._parts[c] >> k & 1 and row and not dropped >> k & 1:
                keys[k] = key & 1 | row << PUBLISHED | 1 << VERSION
        chunks = (*state.chunks[:c], MERGED, *state.chunks[c + 1 :])
        return state._replace(keys=tuple(keys), chunks=chunks)

    def _given_up(self, state: State, numbers: "list[int] | range") -> State:
        chunks = tuple(UNREAD if c in numbers else chunk for c, chunk in enumerate(state.chunks))
        log = tuple(entry for entry in state.log if entry not in numbers)
        return state._replace(chunks=chunks, log=log)

    # ---- the reader

    def _read(self, message: str, state: State, steps: list[Step]) -> None:
        stage = state.stage
        if stage == FENCED:
            early = 0
            if self.rule.floor == "early":
                unseen = [t >> RANK & 63 for t in state.others if t >> RANK & 63 and t >> PHASE & 3 != SEEN]
                early = min(unseen, default=0)
            after = self._snapshot(state._replace(stage=LOOKED, early=early), 1)
            steps.append(_joined(message, "the table is looked at", self._settled(after)))
        elif stage == LOOKED and not message:
            after = state._replace(stage=BEGUN, log=(*state.log, BEGIN_MARK))
            steps.append(("the table's mark is logged", self._settled(after)))
        elif stage == READING:
            for c in range(len(state.chunks)):
                self._read_chunk(message, state, c, steps)

    def _read_chunk(self, message: str, state: State, c: int, steps: list[Step]) -> None:
        chunk = state.chunks[c]
        stage = chunk & 7
        before, behind = state.chunks[:c], state.chunks[c + 1 :]
        if message and (stage == READ or (stage == UNREAD and self.rule.drops == "between")):
            return  # a mark has no use for it
        if stage == READ:
            after = state._replace(chunks=(*before, chunk & ~7 | MARKED, *behind), log=(*state.log, c))
            steps.append((f"the mark of chunk {c + 1} is logged", self._settled(after)))
            return
        if stage > READ or (not self.size.ranges and c and before[-1] & 7 < READ):
            return
        if stage == UNREAD and self.rule.drops == "between":
            after = state._replace(chunks=(*before, LOW, *behind), log=(*state.log, LOW_MARK + c))
            steps.append((f"the low mark of chunk {c + 1} is logged", self._settled(after)))
            return
        for t in (*state.log, *state.others):
            if t >= IS_TRANSACTION and t >> PHASE & 3 != SEEN and self._ops[t & 63].is_truncate:
                return  # ACCESS EXCLUSIVE
        keys = tuple(
            key | (VISIBLE if key & 1 else ABSENT) << ROW if self._parts[c] >> k & 1 else key
            for k, key in enumerate(state.keys)
        )
        after = state._replace(keys=keys, chunks=(*before, chunk & ~7 | READ, *behind))
        if self.rule.drops == "unseen":
            after = self._snapshot(after, 2 << c)
        steps.append(_joined(message, f"chunk {c + 1} is read", self._settled(after)))

    def _snapshot(self, state: State, bit: int) -> State:
        """One that does not see what is not visible."""
        bit <<= UNSEEN
        return state._replace(
            log=tuple(t | bit if t >= IS_TRANSACTION and t >> PHASE & 3 != SEEN else t for t in state.log),
            others=tuple(t | bit if t >> PHASE & 3 != SEEN else t for t in state.others),
        )

    def _fenced(self, state: State) -> State:
        """The fence waits for what runs now."""
        if self.rule.fences == "never" or (self.rule.fences == "once" and state.crashes < self.size.crashes):
            return state
        return state._replace(
            log=tuple(t | FENCED_BIT if t >= IS_TRANSACTION and t >> PHASE & 3 != SEEN else t for t in state.log),
            others=tuple(t | FENCED_BIT if t >> PHASE & 3 != SEEN else t for t in state.others),
        )

    # ---- what goes wrong

    def _crashed(self, state: State) -> State:
        is_floored = MERGED in state.chunks or state.stage == FENCE_AGAIN
        lost = 3 << KNOWN | UNSEEN_BITS | RANK_BITS | FENCED_BIT
        after = state._replace(
            crashes=state.crashes - 1,
            stage=FENCE_AGAIN if is_floored else FENCE,
            early=0,
            keys=tuple(key & (7 | (1 << VERSION if is_floored else 0)) for key in state.keys),
            chunks=tuple(MERGED if chunk == MERGED else UNREAD for chunk in state.chunks),
            log=tuple(t & ~(UNSEEN_BITS | FENCED_BIT | 3 << KNOWN) for t in state.log if t >= IS_TRANSACTION),
            others=tuple(t & ~lost | (UNKNOWN if t >> KNOWN & 3 else NOT_YET) << KNOWN for t in state.others),
        )
        return self._settled(self._fenced(after))

    def _forget(self, state: State, steps: list[Step]) -> None:
        for i, t in enumerate(state.others):
            if t >> KNOWN & 3 == REMEMBERED:
                forgotten = (t & ~(3 << KNOWN)) | FORGOTTEN << KNOWN
                others = (*state.others[:i], forgotten, *state.others[i + 1 :])
                after = state._replace(forgets=state.forgets - 1, others=others)
                steps.append(("its keys are forgotten: " + self._ops[t & 63].name, self._settled(after)))
        if self.is_stepwise or state.stage == IDLE:
            return
        for i, t in enumerate(state.log):  # as soon as it will be received
            if t >= IS_TRANSACTION and not t >> KNOWN & 3:
                log = (*state.log[:i], t | FORGOTTEN << KNOWN, *state.log[i + 1 :])
                steps.append(("its keys will be forgotten", state._replace(forgets=state.forgets - 1, log=log)))

    def _settled(self, state: State) -> State:
        return settled(state, self._parts, self.rule.floor)

    # ---- the end

    def verdict(self, state: State) -> str | None:
        """What is wrong with a state in which the snapshot is done; None: nothing."""
        later = 0
        for t in state.log:
            if t >= IS_TRANSACTION:
                later |= self._ops[t & 63].locks
        coming = puts = 0
        for t in state.others:
            if t >> PHASE & 3 == LOGGED:
                op = self._ops[t & 63]
                coming |= op.locks
                puts |= op.puts
        for k, key in enumerate(state.keys):
            if later >> k & 1:
                continue
            wanted = VISIBLE if key & 1 else ABSENT
            if coming >> k & 1:
                wanted = COMING if puts >> k & 1 else ABSENT
            held = key >> PUBLISHED & 3 if key >> VERSION else ABSENT  # the sweep
            if held != wanted:
                words = ("no row", "a wrong row", "the visible row", "the row of the commit that is not visible yet")
                return f"key {'abcd'[k]}: {words[held]} instead of {words[wanted]}"
        return None


def _joined(message: str, what: str, after: State) -> Step:
    return f"{message}; {what}" if message else what, after

"""A standby's log: only of the primary that rows are read from, only one timeline in a session, and a slot that begins
behind what the primary says of the tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, cast

import pytest
from psycopg import pq

from cdc.model.control import PositionRecord, SourceIdentity
from cdc.model.errors import ConnectionLost, GapError, SourceError, UnreachableError
from cdc.model.lsn import Lsn
from cdc.postgres.replication import (
    CreatedSlot,
    ReplicationConnection,
    SlotMissingError,
    SlotWaitError,
    SystemIdentity,
)
from cdc.postgres.standby_log import OneTimeline, StandbyBehindError, create_slot, require_one_log
from cdc.tables.timelines import Branch, follow

# ---- one timeline

SERVER_EVENTS = ("write", "write", "switch", "write", "write")
READS = 3


@dataclass
class Standby:
    """A standby that replays transactions, and follows another primary meanwhile. Frames are LSNs."""

    events: list[str] = field(default_factory=lambda: list(SERVER_EVENTS))
    end: int = 100
    branch: Branch = field(default_factory=lambda: Branch(1))
    unread: list[bytes] = field(default_factory=list)

    def happen(self, count: int) -> None:
        for _ in range(count):
            if self.events.pop(0) == "switch":
                self.branch = Branch(2, ((1, self.end),))
            else:
                self.end += 100
                self.unread.append(b"%d" % self.end)

    def read(self, _messages: int, _bytes: int) -> list[bytes]:
        found, self.unread = self.unread, []
        return found

    def wait(self, timeout_s: float) -> None: ...

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None: ...


def histories() -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """All ways in which a standby's events can lie before the readings, and between each and the question for the
    timeline."""
    for places in combinations_with_replacement(range(2 * READS + 1), len(SERVER_EVENTS)):
        counts = [places.count(place) for place in range(2 * READS)]
        yield counts[::2], counts[1::2]


def position(branch: Branch, published: int) -> PositionRecord:
    source = SourceIdentity(
        system_identifier="7", timeline=branch.timeline, database="shop", slot="watershed", branches=branch.ended or ()
    )
    return PositionRecord(
        phase="streaming",
        epoch=1,
        seq=1,
        resume_lsn=published,
        published_lsn=published,
        source=source,
        publication="watershed:7:abc",
        protocol="proto_version=1",
    )


def continue_everywhere(before: Sequence[int], between: Sequence[int], *, is_guarded: bool) -> None:
    """Publishes what is read. After each step the process is killed, and the next start must continue: it raises
    GapError if not."""
    standby = Standby()
    session, recorded = standby.branch, position(standby.branch, 100)
    for number in range(READS):
        standby.happen(before[number])
        follow(recorded, standby.branch)

        def timeline_now(count: int = between[number], unguarded: int = session.timeline) -> int:
            standby.happen(count)
            return standby.branch.timeline if is_guarded else unguarded

        stream = OneTimeline(standby, timeline_now, session.timeline)
        try:
            frames = stream.read(1, 1)
        except ConnectionLost:
            recorded, session = follow(recorded, standby.branch), standby.branch
            continue
        if frames:
            recorded = recorded.model_copy(update={"resume_lsn": int(frames[-1]), "published_lsn": int(frames[-1])})
        follow(recorded, standby.branch)


@pytest.mark.invariant(10)
def test_whenever_a_standby_changes_its_timeline_each_position_that_was_recorded_continues() -> None:
    for before, between in histories():
        continue_everywhere(before, between, is_guarded=True)


def test_without_the_question_a_position_would_look_as_if_it_never_happened() -> None:
    gaps = 0
    for before, between in histories():
        try:
            continue_everywhere(before, between, is_guarded=False)
        except GapError:
            gaps += 1
    assert gaps > 0


def test_a_server_is_asked_only_about_something_that_was_read() -> None:
    answers, standby = [1], Standby()
    stream = OneTimeline(standby, answers.pop, 1)
    assert stream.read(1, 1) == []
    assert answers == [1]
    standby.happen(1)
    assert stream.read(1, 1) == [b"200"]
    assert answers == []


# ---- one branch

PRIMARY = SystemIdentity("7", 1, "shop", True, (), started="10:00")
STANDBY = replace(PRIMARY, is_standby=True, started="11:00", replayed=800)
PROMOTED = replace(PRIMARY, timeline=2, ended=((1, 850),), started="12:00")


@pytest.mark.parametrize(
    ("primary", "standby"),
    [
        (PRIMARY, STANDBY),
        (PROMOTED, STANDBY),  # it has not followed yet, and can
        (PROMOTED, replace(STANDBY, replayed=850)),
        (PROMOTED, replace(STANDBY, timeline=2, ended=((1, 850),), replayed=2000)),
        (PROMOTED, replace(STANDBY, timeline=2, ended=None, replayed=2000)),  # it has lost its history file
        (PROMOTED, PROMOTED),  # the standby was promoted, and source.dsn names it, too
    ],
)
def test_a_standby_of_the_primary_is_read(primary: SystemIdentity, standby: SystemIdentity) -> None:
    require_one_log(primary, standby)


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    ("primary", "standby", "error", "says"),
    [
        (PRIMARY, replace(STANDBY, system_identifier="8"), SourceError, "it is no standby of that server"),
        (PRIMARY, replace(STANDBY, database="other"), SourceError, "leads to database other"),
        (
            PROMOTED,
            replace(STANDBY, replayed=851),
            UnreachableError,
            "can't follow the primary, which is on timeline 2",
        ),
        (
            PROMOTED,
            replace(STANDBY, timeline=2, ended=((1, 700),), replayed=2000),
            UnreachableError,
            "their logs part at 0/2BC, and the standby has replayed 0/7D0",
        ),
        (PRIMARY, replace(STANDBY, timeline=2, ended=((1, 850),)), UnreachableError, "leads to an old primary"),
        (PROMOTED, PRIMARY, UnreachableError, "lead to two primaries"),  # an old one, which is no standby
        (PRIMARY, PROMOTED, UnreachableError, "leads to an old primary, on timeline 1"),
        (PRIMARY, replace(PRIMARY, started="13:00"), UnreachableError, "lead to two primaries"),
    ],
)
def test_a_log_that_the_primary_does_not_write_is_refused(
    primary: SystemIdentity, standby: SystemIdentity, error: type[SourceError], says: str
) -> None:
    with pytest.raises(error) as refused:
        require_one_log(primary, standby)
    assert says in refused.value.message
    assert refused.value.hint


# ---- the slot


class Answers:
    """A connection whose queries are answered by their first match."""

    def __init__(self, *answers: tuple[str, list[Any]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def execute(self, query: Any, _parameters: object = None) -> "Answers":
        text = query if isinstance(query, str) else query.as_string(None)
        self.asked.append(text)
        self.found = next(values for words, values in self.answers if words in text)
        return self

    def fetchone(self) -> tuple[Any, ...]:
        return (self.found.pop(0) if len(self.found) > 1 else self.found[0],)


class Replication:
    """Takes the place of ReplicationConnection."""

    def __init__(self, *, is_standby: bool = True) -> None:
        self.is_standby = is_standby

    def create_slot(self, name: str, _wait_s: int) -> CreatedSlot:
        return CreatedSlot(Lsn(1), f"snapshot of {name}")

    def create_standby_slot(self, name: str, wait_s: float, meanwhile: Callable[[], None]) -> CreatedSlot:
        assert name == "watershed"
        assert wait_s >= 1
        meanwhile()
        return CreatedSlot(Lsn(0x500), "")


def created(replication: Replication, primary: Answers, server: Answers, wait_s: int = 30) -> CreatedSlot:
    of_replication = cast("ReplicationConnection", replication)
    return create_slot(of_replication, cast("Any", primary), cast("Any", server), "watershed", wait_s)


def test_the_slot_begins_behind_what_was_in_the_primarys_log_when_the_tables_were_locked() -> None:
    primary = Answers(("has_function_privilege", [True]), ("pg_log_standby_snapshot", ["0/400", "0/480"]))
    server = Answers(("pg_last_wal_replay_lsn", [None, "0/3FF", "0/400"]))
    assert created(Replication(), primary, server).consistent_point == 0x500
    assert len(server.asked) == 3, "it was waited for"
    assert primary.asked.count("SELECT pg_catalog.pg_log_standby_snapshot()::text") == 2, "also while it is created"


def test_a_role_that_may_not_log_running_transactions_writes_messages_until_the_server_does() -> None:
    primary = Answers(("has_function_privilege", [False]), ("pg_logical_emit_message", ["0/400"]))
    assert created(Replication(), primary, Answers(("pg_last_wal_replay_lsn", ["0/900"]))).consistent_point == 0x500
    assert not any(asked.startswith("SELECT pg_catalog.pg_log_standby_snapshot") for asked in primary.asked)


def test_a_standby_that_is_behind_is_named_and_gets_no_slot() -> None:
    primary = Answers(("has_function_privilege", [True]), ("pg_log_standby_snapshot", ["0/400"]))
    with pytest.raises(StandbyBehindError) as behind:
        created(Replication(), primary, Answers(("pg_last_wal_replay_lsn", ["0/300"])), wait_s=0)
    assert "waits for the standby, which has replayed 0/300, and not yet 0/400" in behind.value.message


def test_a_promoted_standby_gets_its_slot_as_every_primary() -> None:
    assert created(Replication(is_standby=False), Answers(), Answers()).snapshot_name == "snapshot of watershed"


# ---- conflicts


@dataclass(frozen=True)
class Refused:
    """An error that a server sent."""

    state: bytes
    status: pq.ExecStatus = pq.ExecStatus.FATAL_ERROR
    error_message: bytes = b"ERROR:  canceling statement due to conflict with recovery"

    def error_field(self, _field: pq.DiagnosticField) -> bytes:
        return self.state


@pytest.mark.parametrize(
    ("state", "command", "error"),
    [
        (b"40001", "IDENTIFY_SYSTEM", ConnectionLost),
        (b"40001", "CREATE_REPLICATION_SLOT", ConnectionLost),
        (b"57014", "CREATE_REPLICATION_SLOT", SlotWaitError),
        (b"57014", "IDENTIFY_SYSTEM", ConnectionLost),
        (b"55000", "START_REPLICATION", SlotMissingError),
    ],
)
def test_what_a_standby_cancels_is_tried_again(state: bytes, command: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        ReplicationConnection._checked(cast("Any", Refused(state)), command, pq.ExecStatus.TUPLES_OK)

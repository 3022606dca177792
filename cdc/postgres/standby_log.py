"""A standby whose log is read (source.standby_dsn), beside the primary, where rows are read and watermarks are written.

Log positions are the same on both. What needs care: both must be on one branch of the log, a slot on a standby must
begin behind what the primary's catalog says, and a standby changes its timeline without ending the stream.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final, LiteralString

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, SourceError, UnreachableError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from cdc.ports.stream import LogStream
from cdc.postgres.chunk_statements import watermark_statement
from cdc.postgres.connection import SourceConnection, read_row, says_lost
from cdc.postgres.replication import CreatedSlot, ReplicationConnection, SlotWaitError, SystemIdentity
from cdc.tables.timelines import require_can_follow

GRANT: Final = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_log_standby_snapshot() TO <role>"
POLL_S: Final = 0.1
# False where the server has no such function.
MAY_LOG: LiteralString = """
SELECT coalesce(has_function_privilege(to_regprocedure('pg_catalog.pg_log_standby_snapshot()'), 'EXECUTE'), false)
"""


class StandbyBehindError(SlotWaitError):
    """The standby has not replayed what was in the primary's log when the tables were locked."""


# ---- one branch


def require_log_of_primary(source: SourceConfig) -> None:
    """Raises SourceError if source.standby_dsn leads to another cluster than source.dsn, UnreachableError while the
    standby does not follow that primary, or while one of them is away."""
    if source.standby_dsn is None:
        return
    with (
        closing(ReplicationConnection(source)) as at_primary,
        closing(ReplicationConnection(source.log_server)) as at_standby,
    ):
        require_one_log(at_primary.identify(), at_standby.identify())


def require_one_log(primary: SystemIdentity, standby: SystemIdentity) -> None:
    """Raises like require_log_of_primary. `standby`: it may have been promoted. Pure."""
    if standby.server != primary.server:
        raise SourceError(
            f"source.standby_dsn leads to database {standby.database} (system identifier "
            f"{standby.system_identifier}), source.dsn to {primary.database} ({primary.system_identifier}): it is no "
            "standby of that server",
            "correct one of them",
        )
    require_can_follow(primary.branch, standby.branch, Lsn(standby.replayed))
    if not standby.is_standby and standby.started != primary.started:
        raise UnreachableError(
            "source.dsn and source.standby_dsn lead to two primaries",
            "shut down the one that is not the primary; a copy that was never a standby can't be read",
        )


class OneTimeline:
    """The stream of a standby, as long as the standby stays on a timeline. Implements cdc.ports.stream.LogStream.

    A standby that is promoted, or that follows another primary which was, goes on streaming, and no message says where
    the new timeline begins. A position beyond that point, recorded with the former timeline, would look as if it had
    never happened. So the server is asked after each reading: timelines only increase, hence what was read before the
    answer is of the timeline in it, or of an earlier one.
    """

    def __init__(self, stream: LogStream, timeline_now: Callable[[], int], timeline: int) -> None:
        """`timeline`: which `stream` began on. `timeline_now`: asks the same server."""
        self._stream = stream
        self._timeline_now = timeline_now
        self._timeline = timeline

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        frames = self._stream.read(messages_max, bytes_max)
        if frames and (now := self._timeline_now()) != self._timeline:
            raise ConnectionLost(_left(self._timeline, now))
        return frames

    def wait(self, timeout_s: float) -> None:
        self._stream.wait(timeout_s)

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        self._stream.send_status(received, confirmed, reply_requested=reply_requested)


def on_one_timeline(
    resources: ExitStack, source: SourceConfig, stream: ReplicationConnection, identity: SystemIdentity
) -> LogStream:
    """Returns the stream; that of a standby ends when the standby changes its timeline. `identity`: of its server.
    Raises ConnectionLost if source.standby_dsn leads to several servers, or if the timeline is another one already:
    the slot may have been waited for since."""
    if not identity.is_standby:
        return stream
    second = ReplicationConnection(source.log_server)
    resources.callback(second.close)
    now = second.identify()
    if now.started != identity.started:
        raise ConnectionLost("source.standby_dsn leads to several servers, of which one has the slot: name that one")
    if now.timeline != identity.timeline:
        raise ConnectionLost(_left(identity.timeline, now.timeline))
    return OneTimeline(stream, second.timeline, identity.timeline)


def _left(timeline: int, now: int) -> str:
    return f"the standby went from timeline {timeline} to {now}: it was promoted, or follows a server that was"


# ---- the slot


def create_slot(
    replication: ReplicationConnection, primary: SourceConnection, server: SourceConnection, name: str, wait_s: int
) -> CreatedSlot:
    """Creates the slot where `replication` and `server` are connected, within `wait_s` seconds; exports its snapshot
    unless that is a standby. On a standby it begins behind the present end of the primary's log, so that tables which
    are locked on the primary are at its beginning as they are there now. Raises SlotWaitError, SlotExistsError,
    ConnectionLost."""
    if not replication.is_standby:
        return replication.create_slot(name, wait_s)
    deadline = time.monotonic() + wait_s
    with says_lost():
        end = log_snapshot(primary)
        _await_replayed(server, end, deadline)

        def meanwhile() -> None:
            log_snapshot(primary)

        return replication.create_standby_slot(name, max(deadline - time.monotonic(), 1.0), meanwhile)


def log_snapshot(primary: SourceConnection) -> Lsn:
    """Makes the primary write its running transactions to its log, which the creation of a slot waits for on a standby.
    A role that may not do that writes a message, after which the server does it by itself within 15 seconds. Returns
    the present end of the log. Raises psycopg.Error."""
    (may_log,) = read_row(primary, MAY_LOG)
    if may_log:
        (end,) = read_row(primary, "SELECT pg_catalog.pg_log_standby_snapshot()::text")
    else:
        (end,) = primary.execute(watermark_statement("")).fetchone() or ("",)
    return parse_lsn(end)


def _await_replayed(server: SourceConnection, end: Lsn, deadline: float) -> None:
    while (replayed := read_replayed(server)) is None or replayed < end:
        if time.monotonic() > deadline:
            raise StandbyBehindError(
                f"slot creation waits for the standby, which has replayed {format_lsn(Lsn(replayed or 0))}, and not "
                f"yet {format_lsn(end)}",
                "if it stays behind, see that standby's log, and pg_stat_replication on the primary",
            )
        time.sleep(POLL_S)


def read_replayed(server: SourceConnection) -> Lsn | None:
    """Returns up to where a standby has replayed the log; None if it has not since its start. Raises psycopg.Error."""
    (lsn,) = read_row(server, "SELECT pg_last_wal_replay_lsn()::text")
    return parse_lsn(lsn) if lsn is not None else None

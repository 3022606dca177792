"""A replication connection: slots, and the log as a stream of CopyData payloads (cdc.ports.stream.LogStream).

libpq is used directly: psycopg's cursors do not support COPY BOTH, and no automatic feedback of a library may report a
position to the server that is not ours.
"""

import hashlib
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

import psycopg
import structlog
from psycopg import pq

from cdc.config.settings import SourceConfig
from cdc.model.errors import NEXT_AFTER_GAP, GapError, SourceError, UnreachableError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from cdc.pgoutput.frames import standby_status
from cdc.postgres.connection import (
    APPLICATION,
    SET_WHERE_KNOWN,
    connect,
    connect_error,
    conninfo,
    holds_any_bytes,
    lost,
    says_lost,
    says_too_large,
)
from cdc.tables.timelines import Branch, Ended, parse_history

log = structlog.get_logger(__name__)

FAILOVER_VERSION: Final = 170_000  # the first that synchronises slots to standbys
# Delay before reading, in which more can gather: a reader that wakes for every packet makes the server send tiny
# packets.
GATHER_S = 0.0005
# Slot creation waits for every running write transaction. One of them may wait for our table locks, which no deadlock
# detector sees; so the locks are released, and the start is repeated.
SLOT_WAIT_S = 30
SLOT_WAIT_S_FIRST = 2  # most transactions end within this time; for others a message is logged

SEND_S_MAX = 30.0
# A silent server is asked for a reply after ASK_S. If it does not reply, it may be busy with a transaction of other
# tables, or a proxy may keep a connection that leads nowhere. After SILENCE_S the server is asked over another
# connection.
ASK_S = 15.0
SILENCE_S = 45.0

# undefined_object (publication dropped), object_not_in_prerequisite_state (slot invalidated), undefined_file (WAL
# segment removed)
_HISTORY_IS_GONE = {"42704", "55000", "58P01"}
# connection exceptions, conflicts of a standby with what it replays, operator intervention (shutdown, terminated)
_CONNECTION_CLASSES = {"08", "40", "57"}
_RESOURCES = "53"  # insufficient memory or disk space
_DATA_EXCEPTION = "22"  # only expressions of row filters are evaluated


NEXT_AFTER_STANDBY: Final = (
    "name the primary in source.dsn, or all servers; to read this standby's log: source.standby_dsn, beside the primary"
)
ANSWER_S: Final = 5.0  # for a command that a server answers at once
CANCEL_S: Final = 5.0  # for the answer to a command that was cancelled
POLL_S: Final = 0.5


class SlotInUseError(SourceError):
    """Another process streams from the slot."""


class SlotMissingError(SourceError):
    """The slot does not exist or can't be used any more."""


class SlotExistsError(SourceError):
    """A slot of that name exists already."""


class StandbyError(UnreachableError):
    """The server is in recovery: no primary answers."""


class FileMissingError(SourceError):
    """The server has not the file of a timeline's history, or of its log, any more."""


class SlotWaitError(SourceError):
    """Slot creation waited too long for running transactions."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    database: str
    promises_utf8: bool  # whether the server converts all text to UTF-8
    ended: tuple[tuple[int, int], ...] | None = ()  # see SourceNow.ended
    is_standby: bool = False
    started: str = ""  # when the server was started, in its own words: no other server has the same
    replayed: int = 0  # up to which LSN a standby has replayed the log

    @property
    def branch(self) -> Branch:
        return Branch(self.timeline, self.ended)

    @property
    def server(self) -> tuple[str, str]:
        """See SourceIdentity.server."""
        return self.system_identifier, self.database


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """The LSN at which the stream begins, and the transaction snapshot that shows everything before it."""

    consistent_point: Lsn
    snapshot_name: str


class StartLock:
    """A session-level advisory lock in the source, named after the slot, so that one instance at a time creates the
    slot and loads existing rows. Until the stream holds the slot, nothing else in the source prevents a second
    instance."""

    def __init__(self, source: SourceConfig) -> None:
        self._connection = connect(source, application="watershed start")
        digest = hashlib.sha256(f"watershed start {source.slot}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)

    @says_lost()
    def try_acquire(self) -> bool:
        """Returns False while another instance holds the lock. Raises ConnectionLost."""
        return self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone() == (True,)

    def close(self) -> None:
        """Releases the lock. Idempotent."""
        self._connection.close()


class ReplicationConnection:
    """A connection in replication mode; after `start` it is a LogStream."""

    def __init__(self, source: SourceConfig) -> None:
        pgconn = pq.PGconn.connect(conninfo(source, application=APPLICATION, replication=True).encode())
        if pgconn.status != pq.ConnStatus.OK:
            words = pgconn.error_message.decode("utf-8", "replace")
            pgconn.finish()
            raise connect_error(words, source)
        self._source = source
        self._pgconn = pgconn
        self._slot = ""
        self.is_standby = False  # as `identify` found it
        self._received_at = self._checked_at = time.monotonic()
        self.notices: list[str] = []
        pgconn.notice_handler = self._on_notice
        if holds_any_bytes(pgconn):
            self._row("SET client_encoding = 'SQL_ASCII'")

    def close(self) -> None:
        if self._pgconn.status == pq.ConnStatus.OK:
            self._pgconn.finish()

    def _on_notice(self, result: pq.abc.PGresult) -> None:
        self.notices.append((result.error_message or b"").decode("utf-8", "replace").strip())

    # ---- commands

    def identify(self) -> SystemIdentity:
        """Returns what identifies the server and its log. Raises StandbyError for a server in recovery that
        source.standby_dsn does not name: it may have a slot of our name, which is not usable before a promotion."""
        self._row(SET_WHERE_KNOWN)  # a standby instance and the owner of a snapshot are idle for a long time
        in_recovery, started, replayed = self._row(
            "SELECT pg_is_in_recovery(), pg_postmaster_start_time()::text, coalesce(pg_last_wal_replay_lsn(), '0/0')"
        )
        self.is_standby = in_recovery == "t"
        if self.is_standby and not self._source.may_be_standby:
            raise StandbyError("PostgreSQL: the server is a standby, which accepts no watermarks", NEXT_AFTER_STANDBY)
        row = self._row("IDENTIFY_SYSTEM")
        timeline = int(row[1])
        return SystemIdentity(
            row[0],
            timeline,
            row[3],
            not holds_any_bytes(self._pgconn),
            self._read_history(timeline),
            self.is_standby,
            started,
            parse_lsn(replayed),
        )

    def timeline(self) -> int:
        """Returns the timeline of what the server has replayed or written. Raises ConnectionLost, also if it does not
        answer within ANSWER_S."""
        result = self._answer("IDENTIFY_SYSTEM", ANSWER_S)
        return int(self._values(self._checked(result, "IDENTIFY_SYSTEM", pq.ExecStatus.TUPLES_OK))[1])

    def _read_history(self, timeline: int) -> Ended | None:
        """Returns the timelines that led to this one; None if the server has lost the file."""
        if timeline == 1:
            return ()  # it has no file
        try:
            return parse_history(self._row(f"TIMELINE_HISTORY {timeline}")[1])
        except FileMissingError:
            return None

    def read_timeout_s(self) -> float:
        """Returns wal_sender_timeout in seconds, after which the server closes a silent connection. 0: never."""
        return int(self._row("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")[0]) / 1000

    def create_standby_slot(self, name: str, wait_s: float, meanwhile: Callable[[], None]) -> CreatedSlot:
        """Creates a logical slot for pgoutput on a standby, without a snapshot. `meanwhile` is called every POLL_S:
        creation waits for a record that only the primary writes, and no lock, so that lock_timeout does not end
        it. Raises SlotExistsError; SlotWaitError after `wait_s` seconds."""
        command = f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput NOEXPORT_SNAPSHOT'
        row = self._values(self._checked(self._answer(command, wait_s, meanwhile), command, pq.ExecStatus.TUPLES_OK))
        return CreatedSlot(parse_lsn(row[1]), "")

    def create_slot(self, name: str, wait_s: int = SLOT_WAIT_S) -> CreatedSlot:
        """Creates a logical slot for pgoutput and exports its snapshot, which lasts until the next command on this
        connection.

        Raises SlotExistsError; SlotWaitError if running write transactions did not end within `wait_s` seconds.
        """
        self._row(f"SET lock_timeout = '{wait_s}s'")
        # In the same command: another one would end the exported snapshot.
        options = "(SNAPSHOT 'export', FAILOVER true)" if self._has_failover else "EXPORT_SNAPSHOT"
        row = self._row(f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput {options}')
        return CreatedSlot(parse_lsn(row[1]), row[2])

    def set_failover(self, name: str) -> None:
        """Gives the existing slot the option FAILOVER, or takes it away, as configured. Does nothing while the slot is
        in use or missing. A server that refuses is no obstacle: the slot is then lost at a promotion, which is a
        gap. A standby's slot can't have it."""
        if self._pgconn.server_version < FAILOVER_VERSION or self.is_standby:
            return
        wanted = self._has_failover
        query = f"SELECT failover, active FROM pg_replication_slots WHERE slot_name = '{name}'"  # noqa: S608 - [a-z0-9_]
        row = self._row(query)
        if row in ([], ["t" if wanted else "f", "f"]) or row[1] == "t":
            return
        try:
            self._row(f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER {"true" if wanted else "false"})')
        except SourceError as error:
            log.warning("slot can't be altered: a standby may not have it after a promotion", error=error.message)
        else:
            log.info("slot altered", slot=name, failover=wanted)

    @property
    def _has_failover(self) -> bool:
        return self._source.failover and self._pgconn.server_version >= FAILOVER_VERSION

    def start(self, slot: str, publication: str, lsn: Lsn) -> None:
        """Begins to stream transactions that commit at or after `lsn`.

        Raises SlotInUseError while another process has the slot, SlotMissingError if it does not exist or is
        invalidated.
        """
        # The option's value is a list of quoted identifiers inside a quoted literal.
        names = '"' + publication.replace('"', '""') + '"'
        literal = names.replace("'", "''")
        self._exec(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {format_lsn(lsn)} '
            f"(proto_version '1', publication_names '{literal}', messages 'true')",
            pq.ExecStatus.COPY_BOTH,
        )
        self._pgconn.nonblocking = 1
        self._slot = slot
        self._received_at = time.monotonic()

    def _row(self, command: str) -> list[str]:
        return self._values(self._exec(command, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK))

    @staticmethod
    def _values(result: pq.abc.PGresult) -> list[str]:
        return [(result.get_value(0, i) or b"").decode() for i in range(result.nfields)] if result.ntuples else []

    def _exec(self, command: str, *expected: pq.ExecStatus) -> pq.abc.PGresult:
        if self._pgconn.status != pq.ConnStatus.OK:
            raise lost("the connection is closed")
        return self._checked(self._pgconn.exec_(command.encode()), command, *expected)

    def _answer(self, command: str, wait_s: float, meanwhile: Callable[[], None] | None = None) -> pq.abc.PGresult:
        """Returns the answer of a server that may take long or hang. After `wait_s` seconds the command is cancelled,
        if something is done `meanwhile`, which is called every POLL_S. Raises ConnectionLost without an answer."""
        deadline, is_cancelled = time.monotonic() + wait_s, meanwhile is None
        try:
            self._pgconn.send_query(command.encode())
            while self._pgconn.is_busy():
                if time.monotonic() > deadline:
                    if is_cancelled:
                        raise lost("the server does not answer")
                    self._pgconn.get_cancel().cancel()
                    deadline, is_cancelled = time.monotonic() + CANCEL_S, True
                readable, _, _ = select.select([self._pgconn.socket], [], [], POLL_S)
                if readable:
                    self._pgconn.consume_input()
                elif meanwhile is not None:
                    meanwhile()
            answer = self._pgconn.get_result()
            while self._pgconn.get_result() is not None:
                pass
        except psycopg.OperationalError as error:
            raise lost(error) from error
        if answer is None:
            raise lost("the server does not answer")
        return answer

    @staticmethod
    def _checked(result: pq.abc.PGresult, command: str, *expected: pq.ExecStatus) -> pq.abc.PGresult:
        """Returns the result of the command. Raises the error that it is."""
        if result.status in expected:
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        words = " ".join((result.error_message or b"").decode("utf-8", "replace").split())
        match state:
            case "55006":  # object_in_use
                raise SlotInUseError(words)
            case "42710":  # duplicate_object
                raise SlotExistsError(words)
            case "55P03":  # lock_not_available: lock_timeout
                raise SlotWaitError(words)
            case "57014" if command.startswith("CREATE_REPLICATION_SLOT"):  # query_canceled, by us
                raise SlotWaitError(words)
            case "58P01":  # undefined_file
                raise FileMissingError(f"PostgreSQL refused {command.split()[0]}: {words}", "see the server's log")
            case "42704" | "55000":  # undefined_object, object_not_in_prerequisite_state
                raise SlotMissingError(words)
            case _ if not state or state[:2] in _CONNECTION_CLASSES:
                raise lost(words)
            case _:
                raise SourceError(f"PostgreSQL refused {command.split()[0]}: {words}", "see the server's log")

    # ---- LogStream

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        """Implements cdc.ports.stream.LogStream. Raises GapError if the server reports that history is lost."""
        pgconn = self._pgconn
        frames: list[bytes] = []
        size = 0
        try:
            pgconn.consume_input()
            while len(frames) < messages_max and size < bytes_max:
                count, view = pgconn.get_copy_data(1)
                if count > 0:
                    frames.append(bytes(view))
                    size += count
                elif count == 0:
                    break
                elif frames:
                    break  # the next call meets the end again, alone
                else:
                    self._raise_end()
        except psycopg.OperationalError as error:
            raise lost(error) from error
        if self.notices:
            self._raise_notice()
        if frames:
            self._received_at = time.monotonic()
        return frames

    def wait(self, timeout_s: float) -> None:
        if self._pgconn.status != pq.ConnStatus.OK:
            raise lost("the connection is closed")
        readable, _, _ = select.select([self._pgconn.socket], [], [], timeout_s)
        if readable:
            time.sleep(GATHER_S)
            return
        now = time.monotonic()
        if now - max(self._received_at, self._checked_at) > SILENCE_S:
            self._checked_at = now
            self._require_walsender()

    def _require_walsender(self) -> None:
        """Raises ConnectionLost or UnreachableError if the server no longer streams here, or does not answer."""
        with connect(self._source, application="watershed") as connection:
            row = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [self._slot]
            ).fetchone()
        if row != (self._pgconn.backend_pid,):
            raise lost("the server stopped streaming, and the connection did not report it (is a proxy in between?)")

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        reply_requested = reply_requested or time.monotonic() - self._received_at > ASK_S
        payload = standby_status(received, confirmed, time.time_ns() // 1000, reply_requested)
        deadline = time.monotonic() + SEND_S_MAX
        try:
            while self._pgconn.put_copy_data(payload) == 0:
                self._await_writable(deadline)
            while self._pgconn.flush() == 1:
                self._await_writable(deadline)
        except psycopg.OperationalError as error:
            if self._pgconn.status == pq.ConnStatus.OK:
                self._raise_end()  # libpq has read the server's error behind the last frames
            raise lost(error) from error

    def _await_writable(self, deadline: float) -> None:
        """Reads while sending is blocked: the server reads only between its writes, and it may be blocked writing to
        us."""
        if time.monotonic() > deadline:
            raise lost("the server accepts no status updates")
        select.select([self._pgconn.socket], [self._pgconn.socket], [], 0.1)
        self._pgconn.consume_input()

    def _raise_end(self) -> NoReturn:
        """Raises the error with which the server ended the stream: GapError, ConnectionLost or SourceError."""
        result = self._pgconn.get_result()
        words = " ".join(((result and result.error_message) or b"").decode("utf-8", "replace").split())
        state = ((result and result.error_field(pq.DiagnosticField.SQLSTATE)) or b"").decode()
        if state in _HISTORY_IS_GONE:
            raise GapError(f"the server can't continue from the position of capture: {words}", NEXT_AFTER_GAP)
        if not state or state[:2] in _CONNECTION_CLASSES or state[:2] == _RESOURCES:
            raise lost(words)
        if state[:2] == _DATA_EXCEPTION:
            raise GapError(
                f"the server can't read a change: {words}",
                "if a row filter of the publication fails on a row, alter it, then cdc snapshot heal: changes that "
                "are already in the WAL are read with the former filter",
            )
        if says_too_large(state, words):
            raise GapError(
                f"the server can't send a row, because its text or that of a value is above 1 GiB: {words}",
                "make the value smaller (octet_length finds it: a bytea's text has twice its bytes), then cdc snapshot "
                "heal",
            )
        raise SourceError(f"the server ended the stream: {words}", "see the server's log")

    def _raise_notice(self) -> None:
        """Raises GapError for a missing publication: PostgreSQL 18 only warns, and skips its changes."""
        words = " ".join("; ".join(self.notices).split())
        self.notices.clear()
        if "publication" in words:
            raise GapError(f"the server warns: {words}", NEXT_AFTER_GAP)

"""Wiring: the order of a start, standby, and retries. The first start is in cdc/daemon/first_start.py.

A start never touches the producer before the slot is held (or, before there is a slot, the start lock), so that two
instances can't fence each other in turn: 1. read the position; 2. take the slot, waiting as standby; 3. fence earlier
producers; 4. read the position again, to its end; 5. check that history is continuous; 6. stream.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

import structlog

from cdc.capture.consistent_load import LoadStopped
from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.daemon.adding_tables import AdditionBarrier
from cdc.daemon.diverged_heal import DivergedHeal
from cdc.daemon.first_start import Bootstrap, require_no_slot
from cdc.daemon.gap_state import Gap, GapTopics, Heal
from cdc.daemon.matched_tables import matched_at_start, read_matches, with_matches
from cdc.daemon.outbox_setup import open_outbox, require_format
from cdc.daemon.record_making import check_encoding
from cdc.daemon.reloading import Reloading
from cdc.daemon.streaming_session import ConfigFile, OnTablesPublished, Session
from cdc.daemon.thread_signals import PROCESS_SIGNALS
from cdc.kafka.state_reader import read_position, read_selection
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.condition import Condition
from cdc.model.control import PositionRecord
from cdc.model.errors import (
    NEXT_AFTER_GAP,
    ConfigError,
    ConnectionLost,
    DamagedTextError,
    GapError,
    ProtocolError,
    SourceError,
    UnreachableError,
    UnsupportedChangeError,
    WatershedError,
)
from cdc.model.events import TableId
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.ports.stream import Clock, Probe
from cdc.postgres.connection import at_slot, connect, single_hosts
from cdc.postgres.primaries import PrimaryWatch, find_primary
from cdc.postgres.replication import (
    ReplicationConnection,
    SlotInUseError,
    SlotMissingError,
    StartLock,
    SystemIdentity,
)
from cdc.postgres.source import Source, check_source, read_flush_lsn, read_slot, source_now
from cdc.postgres.standby_log import on_one_timeline, require_log_of_primary
from cdc.tables.continuity import require_same_database, require_same_source, slot_missing
from cdc.tables.matching import require_tables
from cdc.tables.timelines import follow, start_lsn

log = structlog.get_logger(__name__)

STANDBY_POLL_S = 0.5
# The time from the request to stop to the end, whatever hangs meanwhile.
STOP_S_MAX = 8.0
RETRY_S_FIRST = 0.2
RETRY_S_MAX = 10.0
CAUSES_MAX = 20  # beyond these, delays double for each cause
RETRY_S_OF_SEVERAL = 1.0  # with several servers, one of them is promoted within seconds
# Bytes that are damaged in transit differ between readings; the same bytes at the third reading were not.
READINGS_MAX = 3
_NUMBERS = re.compile(r"[0-9A-Fa-f]*\d[0-9A-Fa-f]*")
NEXT_SLOT = "wait: a slot waits for transactions that began earlier, which the log names"
NEXT_RETRY = "nothing to do if this is temporary: capture tries again"


class SystemClock:
    """Implements cdc.ports.stream.Clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_us(self) -> int:
        return time.time_ns() // 1000


class Backoff:
    """Delays between sessions: they double while sessions end soon. They begin again where a session ends for a cause
    that was not there before: a server that refused connections and now says that it is starting up, or is a standby,
    will be there in a moment."""

    def __init__(self, clock: Clock, delay_s_max: float = RETRY_S_MAX) -> None:
        self._clock = clock
        self._delay_s_max = delay_s_max
        self._delay_s = RETRY_S_FIRST
        self._began = clock.monotonic()
        self._causes: set[str] = set()  # since the last session that lasted

    def begin(self) -> None:
        """Starts the clock of a session."""
        self._began = self._clock.monotonic()

    def next_s(self, cause: str) -> float:
        """The delay in seconds before the next session. The first one after a session that lasted is short. `cause`:
        the message of what ended it; numbers in it (ports, processes, positions) make no other cause."""
        if self._clock.monotonic() - self._began > RETRY_S_MAX:
            self._causes.clear()
        cause = _NUMBERS.sub("", cause)
        is_known = cause in self._causes
        if len(self._causes) < CAUSES_MAX:
            self._causes.add(cause)
        delay_s = self._delay_s if is_known or cause not in self._causes else RETRY_S_FIRST
        self._delay_s = min(delay_s * 2, self._delay_s_max)
        return delay_s


class Rereads:
    """Counts bytes that a server should not have sent. They were damaged in transit unless the same bytes come each
    time."""

    def __init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def stopping_error(self, error: UnsupportedChangeError) -> UnsupportedChangeError | None:
        """Returns the error that stops the table; None if another session is to read the change again."""
        if not isinstance(error, DamagedTextError):
            return error
        return error.repeated(READINGS_MAX) if self._is_last(error, error.near) else None

    def is_final(self, error: ProtocolError) -> bool:
        """Says whether each of READINGS_MAX readings had the same error; if not, another session reads the bytes
        again."""
        return self._is_last(error, error.message.encode())

    def _is_last(self, error: WatershedError, what: bytes) -> bool:
        self._seen[what] += 1
        if self._seen[what] >= READINGS_MAX:
            return True
        log.warning("session ended by damaged bytes, which are read again", error=error.message, next=error.hint)
        return False


class Service:
    """Capture as a daemon. `check` writes nothing; `run` returns after a request to stop."""

    def __init__(
        self,
        config: PipelineConfig,
        probe: Probe,
        on_condition: Callable[[Condition], None] = lambda _: None,
        reread: Callable[[], PipelineConfig] | None = None,
        on_published: OnTablesPublished | None = None,
    ) -> None:
        """`on_condition`: receives each state of the service. `reread`: see Reloading."""
        self._on_published = on_published
        self._reloading = Reloading(config, reread)
        self._config = config  # with the primary alone, where source.dsn names several servers
        self._probe = probe
        self._on_condition = on_condition
        self._report("starting", "capture is starting", "nothing to do: it streams in a moment", is_failure=True)
        self._topics = Topics(config.topics.prefix)
        self._admin = self._open_admin()
        self._clock = SystemClock()
        self._addition_barrier = AdditionBarrier(config.source)
        self._failures: dict[TableId, UnsupportedChangeError] = {}  # why tables stopped in earlier sessions
        self._rereads = Rereads()
        self._stop = threading.Event()
        self._is_standby = False
        self._is_loading = False  # rows are read before there is a slot that streams
        self._heal: Heal | None = None  # to be done by the next session
        self._gap = ""  # message of the last gap
        self._reads_all_again = config.snapshot.mode == "always"

    def check(self, *, is_running_on: bool = False) -> Source:
        """Checks source and brokers. `is_running_on`: tables that can't be captured any more are left to the session.
        Raises ConfigError, SourceError, BrokerError, UnreachableError with the next step."""
        config, topics = self._config, self._topics
        if config.source.choice.patterns:
            config = matched_at_start(config, read_selection(config), is_running_on=is_running_on)
        source = check_source(config.source, config.snapshot, is_running_on=is_running_on)
        outbox = open_outbox(config, promises_utf8=True)
        for table in source.tables:
            try:
                require_format(config, outbox, table)
            except (ConfigError, SourceError):
                if config.source.is_named(table.table) and not is_running_on:
                    raise
        self._admin.broker_count()
        of_tables = [] if is_running_on else [topics.table(table) for table in config.source.table_ids]
        self._admin.check([*of_tables, topics.dead_letter])
        keyless = frozenset(map(topics.table, config.source.keyless))
        records = [topics.state, topics.control, topics.progress]
        self._admin.check_single(records, [topics.signals, topics.audit, *keyless.intersection(of_tables)])
        if not is_running_on:  # later a registry that is away is waited for
            check_encoding(config)
        return source

    @property
    def _given(self) -> PipelineConfig:
        """The configuration in force."""
        return self._reloading.in_force

    def _open_admin(self) -> TopicAdmin:
        keyless = map(self._topics.table, self._given.source.keyless)
        return TopicAdmin(self._given.kafka, frozenset([*keyless, self._topics.dead_letter]))

    def reload(self) -> str:
        """Reads the configuration file again: the next session takes it up, which begins at once. Returns what changes,
        in words. Raises WatershedError for a mistake: the configuration in force stays."""
        said = self._reloading.request(self._config.source)
        log.info("configuration read again", changes=said)
        return said

    def _reload_by_itself(self) -> None:
        """Nobody waits for an answer: it goes to the log."""
        if not self._reloading.has_file:
            return
        try:
            self.reload()
        except WatershedError as error:
            problem, hint = error.message, error.hint
        else:
            return
        log.error("the configuration was not taken up", error=problem, next=hint)

    def _take_up(self) -> None:
        """Puts a configuration in force that was read again."""
        if self._reloading.take_up():
            self._admin = self._open_admin()
            server = self._config.source.dsn
            self._config = self._given
            if server != self._given.source.dsn:  # it has several, of which this is the primary
                source = self._given.source.model_copy(update={"dsn": server})
                self._config = self._given.model_copy(update={"source": source})

    def check_history(self, source: Source) -> None:
        """Checks history as a start would, without taking the slot. Raises SourceError for a slot of somebody else, and
        GapError if nothing would be published."""
        with connect(self._config.source) as connection:
            with at_slot(self._config.source, connection) as server:
                slot = read_slot(server, self._config.source.slot)
            # after the slot's LSN and before the log's end: capture may be running
            position = read_position(self._config)
            flush_lsn = read_flush_lsn(connection)
        if position is None:
            require_no_slot(slot, self._config)
            return
        require_same_database(position, source.identity.system_identifier, source.identity.database)
        self._require_configured_slot(position)
        if position.phase == "streaming":
            require_same_source(position, source_now(source.identity, flush_lsn, slot, source.publication))

    def run(self) -> None:
        """Captures until SIGTERM or SIGINT. A lost server is waited for, invalid bytes are read again, an
        UnsupportedChangeError stops its table, and a gap leads to state GAP. Any other error ends the service."""
        self._handle_signals()
        source = self.check(is_running_on=self._is_known())
        log.info("source checked", database=source.identity.database, tables=len(source.tables))
        has_several = len(single_hosts(self._given.source)) > 1
        backoff = Backoff(self._clock, RETRY_S_OF_SEVERAL if has_several else RETRY_S_MAX)
        while not self._stop.is_set():
            backoff.begin()
            try:
                self._session()
            except (ConnectionLost, UnreachableError) as error:
                if self._stop.is_set():
                    log.warning("not drained, the next start continues from the position record", error=error.message)
                else:
                    in_s = backoff.next_s(error.message)
                    log.warning("session lost, restarting", error=error.message, in_s=round(in_s, 1))
                    self._pause(error, in_s)
            except UnsupportedChangeError as error:
                if (failure := self._rereads.stopping_error(error)) is not None:
                    if error.table is None or self._is_loading:
                        raise failure from error  # no session could continue without the table
                    self._failures[TableId(*error.table)] = failure
                self._pause(error, backoff.next_s(error.message))
            except ProtocolError as error:
                if self._rereads.is_final(error):
                    raise
                self._pause(error, backoff.next_s(error.message))
            except LoadStopped:
                log.info("initial load interrupted, the next start restarts it")
            except GapError as error:
                self._report("gap", f"state GAP: {error.message}", error.hint or NEXT_AFTER_GAP, is_failure=True)
                is_repeated, self._gap = error.message == self._gap, error.message
                gap = Gap(
                    error,
                    self._topics,
                    GapTopics(self._config),
                    self._clock,
                    self._stop.wait,
                    has_events=self._config.outbox.is_used,
                    is_repeated=is_repeated,
                )
                is_first = self._heal is None
                self._heal = gap.await_heal(heals_itself=is_first and self._config.heals_itself)
        log.info("stopped")

    def _pause(self, error: WatershedError, delay_s: float) -> None:
        """Waits before the next session begins."""
        self._report("retrying", error.message, error.hint or NEXT_RETRY, is_failure=True)
        self._stop.wait(delay_s)

    def _is_known(self) -> bool:
        """Says whether an earlier process has started capture."""
        try:
            position = read_position(self._config)
        except (GapError, UnreachableError, ConnectionLost):
            return False  # the next step reports it
        return position is not None and position.phase == "streaming"

    def _handle_signals(self) -> None:
        """Handles SIGHUP as `cdc reload`, and SIGTERM and SIGINT as requests to stop. Work that does not end in time
        (unreachable brokers, a slot that waits for other transactions) is abandoned: a process may die at any point
        without losing anything."""
        numbers = set(PROCESS_SIGNALS)
        # A thread waits for them: a handler would run only when the main thread returns from libpq or librdkafka.
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

        def handle_signals() -> None:
            while (number := signal.sigwait(numbers)) == signal.SIGHUP:
                self._reload_by_itself()
            numbers.remove(signal.SIGHUP)
            log.info("stopping", signal=signal.Signals(number).name)
            self._stop.set()
            last_resort = threading.Timer(STOP_S_MAX, give_up)
            last_resort.daemon = True
            last_resort.start()
            os._exit(128 + signal.sigwait(numbers))  # a second request ends at once

        def give_up() -> None:
            log.warning("not drained in time, the next start continues from the position record", after_s=STOP_S_MAX)
            os._exit(0)

        threading.Thread(target=handle_signals, name="signals", daemon=True).start()

    # ---- one session: from reading the position to losing a server

    def _session(self) -> None:
        self._is_loading = False
        self._take_up()
        with ExitStack() as resources:
            if self._config.capture.on_unpublishable == "dead_letter":
                self._admin.check([self._topics.dead_letter])
                self._admin.create(self._config.topics, {"dead_letter": [self._topics.dead_letter]})
            position = None if self._heal else read_position(self._config)
            others = self._find_primary(position)
            require_log_of_primary(self._config.source)
            lock: StartLock | None = None
            if position is None or position.phase != "streaming":
                lock = resources.enter_context(closing(StartLock(self._config.source)))
                if not self._wait_for("another instance is starting", lock.try_acquire):
                    return
                position = self._bootstrapped()
            connection = ReplicationConnection(self._config.source.log_server)
            resources.callback(connection.close)
            identity = connection.identify()
            require_same_database(position, identity.system_identifier, identity.database)
            patience_s = connection.read_timeout_s()
            from_lsn = start_lsn(position, identity.branch)
            connection.set_failover(self._config.source.slot)
            if not self._take_slot(connection, position, identity, from_lsn):
                return
            stream = on_one_timeline(resources, self._config.source, connection, identity)
            if self._is_standby:
                self._require_primary_still()
                self._reload_by_itself()  # the file may have changed since this process was started
            self._take_up()
            self._take_over()
            primaries = resources.enter_context(closing(PrimaryWatch(others, identity)))
            if lock is not None:
                lock.close()
            session = Session(
                self._config,
                self._admin,
                self._clock,
                self._addition_barrier,
                self._failures,
                self._stop.is_set,
                self._probe,
                ConfigFile(self.reload, lambda: self._reloading.is_due, lambda: self._reloading.in_force),
                self._on_published,
            )
            capture = session.prepare(
                resources, stream, identity, patience_s, from_lsn, primaries, self._reads_all_again
            )
            self._reads_all_again = False
            self._failures.clear()  # recorded
            self._report("streaming")
            capture.run()
            if not self._stop.is_set():
                log.info("a session with other tables begins")

    def _bootstrapped(self) -> PositionRecord:
        """Runs the first start, with the start lock held."""
        position = self._position_or_gap()
        is_healed = self._heal is None or (position is not None and position.epoch > self._heal.found_in)
        if position is not None and position.phase == "streaming" and is_healed:
            self._heal = None
            return position
        self._take_over()
        self._is_loading = True
        # A consistent load publishes rows, for hours perhaps; otherwise this creates a slot.
        is_reading = self._config.snapshot.method == "consistent"
        self._report("loading", "the first start: the slot is being created", NEXT_SLOT, is_failure=not is_reading)
        matches = read_matches(self._config, selection := read_selection(self._config))
        if selection is None:
            require_tables(self._config.source, matches)
        config = with_matches(self._config, matches.capturable)
        diverged = DivergedHeal(config, self._admin, self._clock, self._probe)
        if position is None or self._heal is None or not diverged.run(position, self._heal):
            bootstrap = Bootstrap(config, self._admin, self._clock, self._stop.is_set, self._probe)
            bootstrap.run(position, self._heal)
        self._is_loading = False  # the next steps can continue without a table
        self._heal = None
        self._reads_all_again = False
        position = read_position(self._config)
        assert position is not None, "it was recorded a moment ago"
        return position

    def _position_or_gap(self) -> PositionRecord | None:
        """Returns the position; None if there is none, or if it is damaged and the gap is being healed."""
        try:
            return read_position(self._config)
        except GapError:
            if self._heal is None:
                raise
            return None

    def _find_primary(self, position: PositionRecord | None) -> Sequence[SourceConfig]:
        """Chooses the server that all connections of the session use. Returns the other servers of source.dsn, each
        alone."""
        if position is None and self._heal is not None:
            with suppress(GapError):
                position = read_position(self._config)
        source, others = find_primary(self._given.source, position)
        self._config = self._given.model_copy(update={"source": source})
        self._addition_barrier.use(source)
        return others

    def _require_primary_still(self) -> None:
        """A slot that becomes free may be that of an old primary, which the other instance has left for a promoted one.
        Raises ConnectionLost, before that instance is fenced."""
        with suppress(GapError):
            source, _ = find_primary(self._given.source, read_position(self._config))
            if source.dsn != self._config.source.dsn:
                raise ConnectionLost("another server of source.dsn is the primary meanwhile")

    def _take_slot(
        self, connection: ReplicationConnection, position: PositionRecord, identity: SystemIdentity, from_lsn: Lsn
    ) -> bool:
        """Starts streaming, or waits as standby while another instance does. Returns False after a request to stop."""
        slot, publication = self._config.source.slot, self._config.source.publication
        self._require_configured_slot(position)

        def try_start() -> bool:
            try:
                connection.start(slot, publication, from_lsn)
            except SlotInUseError:
                return False
            except SlotMissingError as error:
                what, now = f"can't be used any more: {error.message}", follow(position, identity.branch)
                raise slot_missing(position, now, what, is_standby=identity.is_standby) from error
            return True

        return self._wait_for(f"another process streams from slot {slot}", try_start)

    def _require_configured_slot(self, position: PositionRecord) -> None:
        slot = self._config.source.slot
        if position.source.slot != slot:
            raise GapError(
                f"the topics of prefix {self._topics.prefix} were written from slot {position.source.slot}, not {slot}",
                "correct source.slot, or choose another topics.prefix",
            )

    def _wait_for(self, why: str, attempt: Callable[[], bool]) -> bool:
        """Retries until it succeeds; returns False after a request to stop. One log line says that this instance is the
        standby."""
        if attempt():
            return True
        if not self._is_standby:
            self._is_standby = True
            log.info("standing by", reason=why)
        self._report("standby", why)
        while not self._stop.wait(STANDBY_POLL_S):
            if attempt():
                return True
        return False

    def _take_over(self) -> None:
        if self._is_standby:
            self._is_standby = False
            log.info("taking over")
            self._report("starting", "capture is taking over", "nothing to do: it streams in a moment", is_failure=True)

    def _report(self, state: str, message: str = "", hint: str = "", *, is_failure: bool = False) -> None:
        self._on_condition(Condition("capture", "", state, message, hint, is_failure))

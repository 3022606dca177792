"""State GAP: nothing is published until an operator, or the configuration, says how to continue.

The process stays up and holds neither slot nor producer: another instance may be streaming on the same prefix, for
which there is no gap. So a signal is refused only if nobody else has answered it for a while, and only while the
position is where the gap was found. Brokers that can't be reached are waited for, as in streaming.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.config.settings import PipelineConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import SignalReader, deliver
from cdc.kafka.state_reader import read_state
from cdc.model.control import PositionRecord, SignalAnswer, SignalRecord
from cdc.model.errors import ConnectionLost, GapError, OldPrimaryError, OtherDatabaseError, UnreachableError
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Clock, Signal
from cdc.snapshots.signal_answers import answer_record, offset_record, refusal

log = structlog.get_logger(__name__)

POLL_S: Final = 0.5
GRACE_S: Final = 3.0  # an instance that streams has answered within this time: it reads signals five times a second
RETRY_S: Final = 2.0
CHECK_S: Final = 3.0  # after which another server is looked for, where an old primary answers
PASSING: Final = (ConnectionLost, UnreachableError)


@dataclass(frozen=True, slots=True)
class Heal:
    """The decision to heal a gap, under this epoch (None: the one above the highest known), with these records to be
    written."""

    found_in: int  # the position's epoch when the gap was found, 0 for none; a later one means that it was healed
    epoch: int | None = None
    records: tuple[TopicRecord, ...] = ()
    all_rows: bool = False  # publish every row, not only those that differ from the topics
    moves_to: tuple[str, str] | None = None  # the server and database to continue with, if not the position's
    replaces_slot: bool = False  # drop the slot of our name that is there


class GapTopics:
    """The topics of a process in state GAP. Opens a client for each call; only the reader of signals stays open, until
    its user closes it. Calls raise UnreachableError or ConnectionLost while the brokers are unreachable, BrokerError if
    they refuse."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def known(self) -> tuple[PositionRecord | None, int]:
        """Returns the position, None if it is missing or damaged, and the offset of the next signal."""
        try:
            state = read_state(self._config)
        except GapError:
            return None, 0
        return state.position, state.signals_offset

    def answered(self) -> Collection[str]:
        """Returns the ids of the signals that have an answer."""
        keys = read_latest(self._config.kafka, Topics(self._config.topics.prefix).control)
        return {key.removeprefix(SignalAnswer.KEY) for key in keys if key.startswith(SignalAnswer.KEY)}

    def signals(self, offset: int) -> SignalReader:
        return SignalReader(self._config.kafka, Topics(self._config.topics.prefix).signals, offset)

    def answer(self, record: TopicRecord) -> None:
        """Writes the record and returns when the brokers acknowledged it. Fences no producer."""
        deliver(self._config.kafka, record)


@dataclass(slots=True)
class _Waiting:
    signal: Signal
    until: float  # monotonic seconds


class Gap:
    """One gap, from its discovery until it is healed or turns out to be none."""

    def __init__(
        self,
        error: GapError,
        topics: Topics,
        port: GapTopics,
        clock: Clock,
        is_stopped: Callable[[float], bool],
        *,
        has_events: bool = False,
        is_repeated: bool = False,
    ) -> None:
        """`is_stopped` waits for a number of seconds, or until a request to stop, and says whether there was one.
        `has_events`: events are published, which can't be read again as rows can. `is_repeated`: it was logged."""
        self._error = error
        self._topics = topics
        self._port = port
        self._clock = clock
        self._is_stopped = is_stopped
        self._has_events = has_events
        self._is_repeated = is_repeated
        self._waiting: list[_Waiting] = []

    def await_heal(self, *, heals_itself: bool) -> Heal | None:
        """Waits for a decision. Returns None after a request to stop, if another instance continues, or after a while
        if the right server may be found again: then check again."""
        may_pass = isinstance(self._error, OldPrimaryError | OtherDatabaseError)
        if not self._is_repeated:
            log.error("state GAP: capture publishes nothing", error=self._error.message, next=self._error.hint)
        known = self._await_known()
        if known is None:
            return None
        position, signals_offset = known
        if self._has_events and not self._is_repeated:
            log.warning(_lost_by_healing(position), next="after healing, cdc check names both LSNs")
        if heals_itself and not may_pass:
            log.warning("healing automatically, as configured")
            return Heal(_epoch(position))
        check_at = self._clock.monotonic() + CHECK_S
        with closing(self._port.signals(signals_offset)) as signals:
            while not self._is_stopped(POLL_S):
                if may_pass and not self._waiting and self._clock.monotonic() > check_at:
                    return None
                until = self._clock.monotonic() + GRACE_S
                self._waiting += [_Waiting(signal, until) for signal in signals.poll()]
                try:
                    heal = self._healing(position)
                    if heal is not None:
                        return heal
                    if self._refuse_unanswered(position):
                        log.info("another instance has continued meanwhile")
                        return None
                except PASSING as error:
                    log.warning("the brokers are away, waiting in state GAP", error=error.message)
                    self._is_stopped(RETRY_S)
        return None

    def _await_known(self) -> tuple[PositionRecord | None, int] | None:
        while True:
            try:
                return self._port.known()
            except PASSING as error:
                log.warning("the brokers are away, waiting in state GAP", error=error.message)
                if self._is_stopped(RETRY_S):
                    return None

    def _healing(self, position: PositionRecord | None) -> Heal | None:
        """Looks for a signal to heal or to move that has no answer: if the state was lost, old signals come again, and
        an answered one was for another gap."""
        if not self._waiting:
            return None
        answered = self._port.answered()
        self._waiting = [waiting for waiting in self._waiting if waiting.signal.identity not in answered]
        now_us = self._clock.now_us()
        for place, waiting in enumerate(self._waiting):
            signal = waiting.signal
            if refusal(signal, now_us) is None and signal.record is not None and self._decides(waiting, signal.record):
                is_move = signal.record.action == "move"
                log.info("moving, as requested" if is_move else "healing, as requested", signal=signal.identity)
                refused = [self._refusal(before.signal) for before in self._waiting[:place]]
                lost = f"; {_lost_by_healing(position)}: see cdc check" if self._has_events else ""
                what = "continuing with the new server" if is_move else "healing"
                accepted = SignalAnswer(is_accepted=True, message=f"{what} under a new epoch{lost}")
                healed = answer_record(self._topics, signal, accepted, now_us)
                return Heal(
                    _epoch(position),
                    signal.record.epoch,
                    (*refused, healed, offset_record(self._topics, signal)),
                    all_rows=signal.record.all_rows,
                    moves_to=signal.record.server if is_move else None,
                    replaces_slot=signal.record.replaces_slot,
                )
        return None

    def _decides(self, waiting: _Waiting, asked: SignalRecord) -> bool:
        """Says whether the signal ends this gap. A move waits until an instance that still streams from the former
        server would have refused it."""
        if not isinstance(self._error, OtherDatabaseError):
            return asked.action == "heal"
        is_here = asked.action == "move" and asked.server == self._error.server
        return is_here and waiting.until <= self._clock.monotonic()

    def _refuse_unanswered(self, position: PositionRecord | None) -> bool:
        """Refuses signals that nobody else has answered. Returns True if another instance continues: then they are its
        business."""
        now = self._clock.monotonic()
        if not any(waiting.until <= now for waiting in self._waiting):
            return False
        now_there, _ = self._port.known()
        if now_there != position:
            return True
        while self._waiting and self._waiting[0].until <= now:
            signal = self._waiting[0].signal
            self._port.answer(self._refusal(signal))
            del self._waiting[0]
            log.info("signal refused in state GAP", id=signal.identity)
        return False

    def _refusal(self, signal: Signal) -> TopicRecord:
        now_us = self._clock.now_us()
        answer = refusal(signal, now_us)
        if answer is None:
            message = f"capture is in state GAP: {self._error.message}"
            hint = self._error.hint if isinstance(self._error, OtherDatabaseError) else "cdc snapshot heal"
            answer = SignalAnswer(is_accepted=False, message=message, next=hint)
        return answer_record(self._topics, signal, answer, now_us)


def _epoch(position: PositionRecord | None) -> int:
    return position.epoch if position else 0


def _lost_by_healing(position: PositionRecord | None) -> str:
    begin = f" from {format_lsn(Lsn(position.resume_lsn))} on" if position else ""
    return f"events that committed{begin} are not published by healing"

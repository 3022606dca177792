"""State GAP: nothing is published until an operator says how to go on, or the configuration did.

The process stays up and holds neither slot nor producer: another instance may be streaming on the same prefix, for
which there is no gap at all. So what is asked meanwhile is refused only when nobody else has answered for a while, and
only while the position stands where the gap was found. Brokers that are away are waited for, as in streaming.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.model.errors import ConnectionLost, GapError, UnreachableError
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.gap_topics import GapTopics, KnownState
from cdc.ports.stream import Clock, Signal
from cdc.records.control import SignalAnswer
from cdc.snapshots.signal_answers import answer_record, is_late, offset_record, too_late

log = structlog.get_logger(__name__)

POLL_S: Final = 0.5
GRACE_S: Final = 3.0  # in which who streams has answered: it looks five times a second
RETRY_S: Final = 2.0
PASSING: Final = (ConnectionLost, UnreachableError)


@dataclass(frozen=True, slots=True)
class Heal:
    """That a gap is to be healed: under this epoch (None: the one above the highest known), with these records told."""

    found_in: int  # the position's epoch when the gap was found; 0: there was none. A later one: somebody healed it
    epoch: int | None = None
    records: tuple[TopicRecord, ...] = ()


@dataclass(slots=True)
class _Waiting:
    signal: Signal
    until: float  # monotonic seconds


class Gap:
    """One gap, from its discovery to the way out."""

    def __init__(
        self,
        error: GapError,
        topics: Topics,
        port: GapTopics,
        clock: Clock,
        is_stopped: Callable[[float], bool],
        *,
        has_events: bool = False,
    ) -> None:
        """`is_stopped` waits for so many seconds, or until asked to stop, and says whether it was. `has_events`: beside
        rows, which are read again, events are published, which are not."""
        self._error = error
        self._topics = topics
        self._port = port
        self._clock = clock
        self._is_stopped = is_stopped
        self._has_events = has_events
        self._waiting: list[_Waiting] = []

    def await_heal(self, *, heals_itself: bool) -> Heal | None:
        """None: asked to stop, or somebody else goes on: to be checked again."""
        log.error("state GAP: nothing is published", error=self._error.message, next=self._error.hint)
        known = self._await_known()
        if known is None:
            return None
        if self._has_events:
            log.warning(_lost_by_healing(known), next="after healing, cdc check says up to where")
        if heals_itself:
            log.warning("healing, as configured")
            return Heal(known.epoch)
        with closing(self._port.signals(known.signals_offset)) as signals:
            while not self._is_stopped(POLL_S):
                until = self._clock.monotonic() + GRACE_S
                self._waiting += [_Waiting(signal, until) for signal in signals.poll()]
                try:
                    heal = self._healing(known)
                    if heal is not None:
                        return heal
                    if self._refuse_what_waited(known):
                        log.info("somebody else has gone on meanwhile")
                        return None
                except PASSING as error:
                    log.warning("the brokers are away, waiting in state GAP", error=error.message)
                    self._is_stopped(RETRY_S)
        return None

    def _await_known(self) -> KnownState | None:
        while True:
            try:
                return self._port.known()
            except PASSING as error:
                log.warning("the brokers are away, waiting in state GAP", error=error.message)
                if self._is_stopped(RETRY_S):
                    return None

    def _healing(self, known: KnownState) -> Heal | None:
        """Where the state was lost, signals of long ago come again: one that has its answer was for another gap."""
        if not self._waiting:
            return None
        answered = self._port.answered()
        self._waiting = [waiting for waiting in self._waiting if waiting.signal.identity not in answered]
        now_us = self._clock.now_us()
        for place, waiting in enumerate(self._waiting):
            signal = waiting.signal
            if signal.record is not None and signal.record.action == "heal" and not is_late(signal.record, now_us):
                log.info("healing, as asked", signal=signal.identity)
                refused = [self._refusal(before.signal) for before in self._waiting[:place]]
                lost = f"; {_lost_by_healing(known)}: see cdc check" if self._has_events else ""
                accepted = SignalAnswer(is_accepted=True, message=f"healing under a new epoch{lost}")
                healed = answer_record(self._topics, signal, accepted, now_us)
                told = (*refused, healed, offset_record(self._topics, signal))
                return Heal(known.epoch, signal.record.epoch, told)
        return None

    def _refuse_what_waited(self, known: KnownState) -> bool:
        """Answer whom nobody else has answered. Whether another process goes on, whose business they are."""
        now = self._clock.monotonic()
        if not any(waiting.until <= now for waiting in self._waiting):
            return False
        if self._port.known().position != known.position:
            return True
        while self._waiting and self._waiting[0].until <= now:
            signal = self._waiting[0].signal
            self._port.answer(self._refusal(signal))
            del self._waiting[0]
            log.info("signal refused in state GAP", id=signal.identity)
        return False

    def _refusal(self, signal: Signal) -> TopicRecord:
        now_us = self._clock.now_us()
        if signal.record is None:
            answer = SignalAnswer(is_accepted=False, message=signal.problem)
        elif is_late(signal.record, now_us):
            answer = too_late()
        else:
            message = f"capture is in state GAP: {self._error.message}"
            answer = SignalAnswer(is_accepted=False, message=message, next="cdc snapshot heal")
        return answer_record(self._topics, signal, answer, now_us)


def _lost_by_healing(known: KnownState) -> str:
    begin = f" from {format_lsn(Lsn(known.position.resume_lsn))} on" if known.position else ""
    return f"events that committed{begin} are not published by healing"

"""What the capture loop needs of the world. `cdc/postgres` and `cdc/kafka` are the real ones; the tests have fakes
that run the same loop from a seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.records.control import SignalRecord

WhileWaiting = Callable[[], None]


class LogStream(Protocol):
    """A replication connection that is streaming. Every method raises ConnectionLost when the server is gone."""

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        """CopyData payloads that have arrived, without waiting; empty when there are none. `bytes_max` is soft:
        one message may pass it."""

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to read, after letting some gather (a reader that wakes for every packet
        makes the server send tiny packets), or after `timeout_s`."""

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        """Standby status update: `confirmed` is what the server may forget."""


class EndOffsetsRequest(Protocol):
    """An answer that is on its way."""

    def result(self) -> Mapping[str, Sequence[int]] | None:
        """Topic → high watermark for each partition; None while there is no answer. Raises ConnectionLost."""


class Broker(Protocol):
    """A transactional Kafka producer that has fenced its predecessors.

    One Kafka transaction at a time: `produce` opens it, `commit` or `abort` ends it. While a call has to wait (queue
    full, brokers slow or away) it calls `while_waiting` several times a second, so that PostgreSQL still hears from
    us. Raises ConnectionLost when the session must be restarted (fenced, aborted by the broker), BrokerError
    when a record can never be taken.
    """

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:
        """Hand records over, in this order for each partition."""

    def commit(self, while_waiting: WhileWaiting) -> None:
        """End the transaction: all of its records are durable and visible to `read_committed` readers, or none."""

    def abort(self) -> None:
        """Give the transaction up, if one is open. Never raises."""

    def request_end_offsets(self) -> EndOffsetsRequest:
        """Ask for the table topics' high watermarks, without waiting for them."""


class Signal(NamedTuple):
    """A record of the signals topic."""

    identity: str
    offset: int
    record: SignalRecord | None
    problem: str  # why there is none


class Signals(Protocol):
    """The signals topic, from an offset on."""

    def poll(self) -> list[Signal]:
        """What has come since the last call; returns at once."""


class Clock(Protocol):
    """Time is an argument."""

    def monotonic(self) -> float:
        """Seconds, for intervals."""

    def now_us(self) -> int:
        """Wall clock, µs since 1970."""


Probe = Callable[[str], None]
"""Called with the name of each point at which a crash is interesting (see cdc/daemon/failpoints.py)."""


def unarmed(_name: str) -> None:
    """The probe of a process that is not to crash at any point."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What one session of capture reads from, writes to, and tells the time by."""

    stream: LogStream
    broker: Broker
    clock: Clock
    probe: Probe = unarmed

"""The environment of the capture loop: replication stream, broker, signals, clock.

`cdc/postgres`, `cdc/kafka` and `cdc/daemon` implement it; the tests have fakes that run the same loop from a seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cdc.model.control import SignalRecord
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord

WhileWaiting = Callable[[], None]


class LogStream(Protocol):
    """A replication connection that is streaming. Every method raises ConnectionLost if the server is gone."""

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        """Returns the CopyData payloads that have arrived; empty if there are none. Does not wait. `bytes_max` is soft:
        one message may exceed it."""

    def wait(self, timeout_s: float) -> None:
        """Returns when there is something to read, after a short delay in which more can gather (a reader that wakes
        for every packet makes the server send tiny packets), or after `timeout_s`."""

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        """Sends a standby status update. The server may forget the log before `confirmed`."""


class EndOffsetsRequest(Protocol):
    """A request for high watermarks that is in progress."""

    def result(self) -> Mapping[str, Sequence[int]] | None:
        """Returns topic → high watermark of each partition, or None while there is no answer. Raises ConnectionLost."""


class Broker(Protocol):
    """A transactional Kafka producer that has fenced its predecessors.

    One Kafka transaction at a time: `produce` opens it, `commit` or `abort` ends it. While a call waits (queue full,
    brokers slow or unreachable) it calls `while_waiting` several times a second, so that the replication connection is
    kept alive. Raises ConnectionLost if the session must restart (fenced, aborted by the broker), BrokerError if a
    record can never be taken.
    """

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:
        """Produces the records, in this order for each partition."""

    def commit(self, while_waiting: WhileWaiting) -> None:
        """Commits the transaction: all of its records are durable and visible to `read_committed` readers, or none."""

    def abort(self) -> None:
        """Aborts the transaction, if one is open. Never raises."""

    def request_end_offsets(self) -> EndOffsetsRequest:
        """Requests the high watermarks of the table topics; does not wait."""


class Signal(NamedTuple):
    """A record of the signals topic. `problem`: why `record` is None."""

    identity: str
    offset: int
    record: SignalRecord | None
    problem: str


class Signals(Protocol):
    """The signals topic, from an offset on."""

    def poll(self) -> list[Signal]:
        """Returns the signals that arrived since the last call; does not wait."""


class Clock(Protocol):
    """The source of time, so that tests can set it."""

    def monotonic(self) -> float:
        """Returns seconds, for intervals."""

    def now_us(self) -> int:
        """Returns the wall clock in µs since 1970."""


Probe = Callable[[str], None]
"""Called with the name of each point at which tests kill the process (see watershed/cli/failpoints.py)."""


def unarmed(_name: str) -> None:
    """The probe that does nothing."""

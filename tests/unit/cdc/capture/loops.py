"""Ports of the loops that do what a test wrote down, and note what was asked of them, in one list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.formats.records import EnvelopeContext
from cdc.model.errors import ConnectionLost
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import WhileWaiting
from tests.support import wire

COLUMNS = (Column("id", 23, -1, "integer", False), Column("name", 25, -1, "text", True))
TABLE = TableId("public", "customers")
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TABLE, oid=10)
CONTEXT = EnvelopeContext("shop", "shop", epoch=1, connector_version="0")
TOPIC = "shop.public.customers"
TS_US = 1_767_323_079_000_000


def transaction(commit_lsn: int, *numbers: int) -> list[bytes]:
    """Frames of a transaction that inserts these keys; it ends 48 bytes after its commit record."""
    inserts = [wire.insert(10, [str(number).encode(), b"x"]) for number in numbers]
    messages = [
        wire.begin(commit_lsn, TS_US, 7),
        wire.relation_bytes(RELATION),
        *inserts,
        wire.commit(commit_lsn, commit_lsn + 48, TS_US),
    ]
    return [wire.xlog_data(message, 0) for message in messages]


@dataclass
class Clock:
    now_s: float = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)


@dataclass
class Script:
    """Inputs, and the notes of all ports in order."""

    clock: Clock = field(default_factory=Clock)
    inputs: list[list[bytes] | Exception] = field(default_factory=list)  # one for each reading; then nothing comes
    waits: int = 3  # readings without input until the stop is asked for
    commit_waits: int = 0  # times that the next commit has to wait, a second each
    commit_error: Exception | None = None
    gone_at_s: float = float("inf")  # when the server that hears our status is gone
    end_offsets: Sequence[Mapping[str, Sequence[int]] | Exception | None] = ()  # answers; then none comes
    reached: int = 0  # the WAL end that the last keepalive named, which an asked one names again
    named: int | None = None  # by that one, if it is another
    notes: list[str] = field(default_factory=list)
    produced: list[TopicRecord] = field(default_factory=list)
    committed: list[TopicRecord] = field(default_factory=list)

    def should_stop(self) -> bool:
        return self.waits <= 0

    def probe(self, name: str) -> None:
        self.notes.append(f"probe {name}")

    # ---- LogStream

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        assert messages_max > 0 and bytes_max > 0
        frames = self.inputs.pop(0) if self.inputs else []
        if isinstance(frames, Exception):
            raise frames
        ends = [int.from_bytes(frame[1:9], "big") for frame in frames if frame[:1] == b"k"]
        self.reached = max([self.reached, *ends])
        return frames

    def wait(self, timeout_s: float) -> None:
        self.clock.now_s += timeout_s
        if not self.inputs:
            self.waits -= 1

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        if reply_requested:
            self.inputs.insert(0, [wire.keepalive(self.named or self.reached)])
        if self.clock.now_s >= self.gone_at_s:
            raise ConnectionLost("PostgreSQL: closed")
        self.notes.append(f"status {received} {confirmed}")

    # ---- Broker

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:  # noqa: ARG002 - never full
        batch = list(records)
        self.produced += batch
        self.notes.append("produce " + " ".join(_name(record) for record in batch))

    def commit(self, while_waiting: WhileWaiting) -> None:
        for _ in range(self.commit_waits):
            self.clock.now_s += 1.0
            while_waiting()
        self.commit_waits = 0
        if self.commit_error is not None:
            raise self.commit_error
        self.notes.append("commit")
        self.committed += self.produced
        self.produced.clear()

    def abort(self) -> None:
        self.notes.append("abort")
        self.produced.clear()

    def request_end_offsets(self) -> "Script":
        self.notes.append("ask for end offsets")
        return self

    def result(self) -> Mapping[str, Sequence[int]] | None:
        answer, self.end_offsets = (self.end_offsets[0], self.end_offsets[1:]) if self.end_offsets else (None, ())
        if isinstance(answer, Exception):
            raise answer
        return answer


def _name(record: TopicRecord) -> str:
    """What a record is: its topic without the prefix, and its key where that says more."""
    topic = record.topic.removeprefix("shop.")
    return topic if topic in ("state", "progress") else f"{topic}:{record.key.decode()}"

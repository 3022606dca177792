"""The capture loop: read frames, assemble, produce, commit the Kafka transaction, confirm. One thread decides.

The loop runs at its own pace: signals and callbacks only record. Its steps are numbered where a crash between two of
them matters; after each of them a restart finds a position record that says exactly what is published.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdc.capture.assembler import Assembler
from cdc.capture.confirmation import Confirmation
from cdc.capture.kafka_transaction import Publisher
from cdc.capture.stream_lag import StreamLag
from cdc.capture.stream_state import StreamState
from cdc.capture.toast_backfill import ToastBackfill
from cdc.config.settings import CaptureConfig
from cdc.formats.heartbeats import Heartbeats
from cdc.model.control import ProgressRecord
from cdc.model.errors import ConnectionLost
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.frames import is_commit
from cdc.ports.published_batch import OnPublished, PublishedBatch
from cdc.ports.stream import Broker, Clock, EndOffsetsRequest, LogStream, Probe, unarmed
from cdc.snapshots.coordination import Snapshots

# Limits of one read: they bound the memory beside librdkafka's queue, and the delay of a status update.
READ_MESSAGES_MAX = 4_000
READ_BYTES_MAX = 8 * 1024 * 1024
# PostgreSQL closes the connection after wal_sender_timeout (60 s by default; where it is short, a shorter interval is
# passed). It requests a reply before that, but a loop that waits for the brokers does not read the request.
STATUS_INTERVAL_S = 5.0
# Interval of requests for the keepalive that confirms the last one (see cdc/pgoutput/wal_ends.py): well within the
# second in which an idle position is recorded, and rare enough where other tables keep the log moving.
ASK_INTERVAL_S = 0.25
# Interval of checks for changes that the stream does not report, such as a table removed from the publication.
WATCH_INTERVAL_S = 3.0
# On a stop, seconds to wait for the end of a transaction that is being received.
FINISH_S_MAX = 3.0
WAIT_S_MAX = 0.2
ANSWER_WAIT_S = 0.01
# End offsets are those of one position (ProgressRecord.is_cut) if nothing was produced between the commit and the
# answer. Under a steady load something always is: so often, the loop produces nothing until the answer is there, if a
# sink needs cuts.
CUT_INTERVAL_S = 1.0
CUT_WAIT_S_MAX = 5.0  # brokers that answer later delay no change
CUT_WAIT_TIMES = 10  # the pause between two such waits is so many times as long as the wait, at least


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a change, in order. Chunks of existing rows enter at `snapshots`."""

    stream: LogStream
    assembler: Assembler
    backfill: ToastBackfill
    snapshots: Snapshots
    publisher: Publisher
    broker: Broker


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """A request for end offsets, and what they are to be published with."""

    answer: EndOffsetsRequest
    state: StreamState  # the committed one when it was made
    owed: Mapping[str, str]
    produced: int | None  # how often records had been produced then; None: some are not committed
    asked_at: float  # monotonic seconds
    is_awaited: bool  # nothing is produced until it is answered


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """The intervals of the loop, and what it does at them."""

    limits: CaptureConfig
    status_interval_s: float = STATUS_INTERVAL_S
    watch: Callable[[], None] = lambda: None  # checks source and brokers
    heartbeats: Heartbeats | None = None
    check_ends: Callable[[Mapping[str, Sequence[int]]], None] = lambda _: None  # of topics, whenever they are known
    awaits_cuts: bool = False  # whether it pauses for one where a steady load leaves none
    on_published: OnPublished | None = None  # called for each Kafka transaction with records of the source


class Capture:
    """Streams from the source to the brokers until `should_stop`. It opens no connections."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        topics: Topics,
        schedule: LoopSchedule,
        clock: Clock,
        should_stop: Callable[[], bool],
        probe: Probe = unarmed,
    ) -> None:
        self._stream = pipeline.stream
        self._assembler = pipeline.assembler
        self._backfill = pipeline.backfill
        self._snapshots = pipeline.snapshots
        self._publisher = pipeline.publisher
        self._broker = pipeline.broker
        self._topics = topics
        self._schedule = schedule
        self._limits = schedule.limits
        self._clock = clock
        self._should_stop = should_stop
        self._probe = probe
        self._confirmation = Confirmation(self._assembler.state.resume_lsn)
        self._lag = StreamLag()
        self._status_at = float("-inf")
        self._keepalive_asked_at = float("-inf")  # monotonic seconds
        self._position_at = float("-inf")
        self._progress_asked_at = float("-inf")
        self._progress_lsn = Lsn(0)
        self._watched_at = self._clock.monotonic()
        self._progress_owed: Mapping[str, str] = {}
        self._progress_request: ProgressRequest | None = None
        self._cut_at = float("-inf")  # monotonic seconds, when a cut was published or awaited last
        self._cut_lsn = Lsn(0)
        self._cut_pause_s = CUT_INTERVAL_S
        self._produced = 0  # how often records of the source were produced
        self._produced_committed = 0  # of these, up to the last commit
        self._committed = self._assembler.state
        if self._committed.partial is not None:
            self._publisher.on_committed(is_begun=True)

    def run(self) -> None:
        """Streams until `should_stop` returns True. Then everything that was received is published, recorded and
        confirmed; an open transaction is published completely or, if its end does not come soon, not at all.

        Raises ConnectionLost if the session must restart, another WatershedError if capture must stop. In both cases
        the open Kafka transaction is aborted.
        """
        try:
            while not (self._should_stop() or self._assembler.has_too_many_relations):
                self._step()
            self._finish()
        except BaseException:
            self._broker.abort()
            raise

    def _finish(self) -> None:
        waits_until = self._clock.monotonic() + FINISH_S_MAX
        while self._publisher.would_split and self._clock.monotonic() < waits_until:
            self._step()
        if self._publisher.would_split:
            self._broker.abort()
        else:
            self._commit()
        self._send_status()

    def _step(self) -> None:
        now = self._clock.monotonic()
        if self._awaits_cut(now):
            self._await_cut(now)
            return
        frames = self._stream.read(READ_MESSAGES_MAX, READ_BYTES_MAX)
        now = self._clock.monotonic()
        # Before the frames, because the answer to a watermark among them is available by now.
        self._snapshots.take_answers(now)
        whole, begun = _split_at_last_commit(frames)
        if whole:
            self._consume(whole)
        if begun:
            if self._publisher.is_due(now, is_dry=False, is_begun=self._assembler.in_transaction):
                self._commit()
            self._consume(begun)
        self._produce(self._snapshots.advance(now, self._clock.now_us(), self._stream_lag_s(frames, now)))
        self._beat(now)
        self._ask_progress(now)
        is_begun = self._assembler.in_transaction
        if self._publisher.is_due(now, is_dry=not frames, is_begun=is_begun) or self._idle_position_is_due(now):
            self._commit()
        asks = self._assembler.needs_keepalive and now - self._keepalive_asked_at >= ASK_INTERVAL_S
        if asks or self._assembler.reply_requested or now - self._status_at >= self._schedule.status_interval_s:
            self._send_status(asks=asks)
        if now - self._watched_at >= WATCH_INTERVAL_S:
            self._watched_at = now
            self._schedule.watch()
        if not frames:
            self._stream.wait(self._wait_s(now))

    def _wait_s(self, now: float) -> float:
        """Returns the longest time in seconds to wait for input before something else is due."""
        wait_s = WAIT_S_MAX if self._progress_request is None else ANSWER_WAIT_S
        if self._publisher.is_open and not self._publisher.would_split:
            wait_s = min(wait_s, max(0.0, self._publisher.wait_s(now)))
        return wait_s

    def _stream_lag_s(self, frames: Sequence[bytes], now: float) -> float:
        """Returns how many seconds publishing is behind the commits of the source."""
        return self._lag.after(
            frames,
            now,
            self._clock.now_us(),
            self._assembler.newest_commit_ts_us,
            is_begun=self._assembler.in_transaction,
            is_full=len(frames) >= READ_MESSAGES_MAX or sum(map(len, frames)) >= READ_BYTES_MAX,
        )

    # ---- 1. produce

    def _consume(self, frames: Sequence[bytes]) -> None:
        records, failure = self._assembler.consume(frames, self._clock.now_us())
        self._confirmation.on_received(self._assembler.received_lsn)
        is_begun = self._assembler.in_transaction
        for piece in self._backfill.fill(records, self._while_waiting):
            self._produce(piece, is_begun=is_begun)
        self._publisher.on_read(self._backfill.read_lsn)
        if not is_begun:
            self._publisher.on_ended()
        if failure is None:
            return
        # The complete transactions before the change are published; the change itself never is.
        if not self._assembler.in_transaction:
            self._commit()
            self._send_status()
        raise failure

    def _produce(self, records: Sequence[TopicRecord], *, is_begun: bool = False) -> None:
        if records:
            self._produced += 1
            self._publisher.on_produced(records, self._clock.monotonic(), is_begun=is_begun)
            self._broker.produce(records, self._while_waiting)

    def _produce_aside(self, record: TopicRecord) -> None:
        """Produces a record that holds nothing of the source."""
        self._publisher.on_produced([record], self._clock.monotonic(), is_content=False)
        self._broker.produce([record], self._while_waiting)

    def _beat(self, now: float) -> None:
        """Produces the heartbeats that are due. If nothing else comes, they are committed at once with the position."""
        heartbeats = self._schedule.heartbeats
        if heartbeats is not None:
            for key, value in heartbeats.due(now, self._clock.now_us()):
                self._produce_aside(TopicRecord(self._topics.heartbeat, key, value))

    # ---- 2. commit, with the position in the same Kafka transaction

    def _commit(self) -> None:
        state = self._assembler.state
        if state == self._committed and not self._publisher.is_open:
            return
        position = self._publisher.position(state)
        self._broker.produce([position.to(self._topics.state)], self._while_waiting)
        self._probe("kafka.before-commit")
        begun_s = self._clock.monotonic()
        self._broker.commit(self._while_waiting)
        if self._schedule.on_published is not None:
            self._report_published(self._schedule.on_published, state, begun_s)
        self._assembler.commits = None
        self._probe("kafka.after-commit")
        if state.partial is not None:
            self._probe("transaction.part-committed")
        now = self._clock.monotonic()
        self._publisher.on_committed(now, commit_s=now - begun_s, is_begun=state.partial is not None)
        self._snapshots.on_committed()
        self._position_at = self._clock.monotonic()
        self._committed, self._produced_committed = state, self._produced
        # ---- 3. confirm what the committed record covers
        self._confirmation.on_recorded(Lsn(state.resume_lsn))
        self._send_status()
        if state.partial is None:
            self._request_cut()

    def _report_published(self, on_published: OnPublished, state: StreamState, begun_s: float) -> None:
        """Reports the Kafka transaction that was committed with `state`. `begun_s`: when its commit began."""
        content = self._publisher.content
        if content is None:
            return
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        commits, partial = self._assembler.commits, state.partial
        if partial is not None:
            last = Lsn(partial.commit_lsn)
            commits = (last if commits is None else commits[0], last)
        on_published(
            PublishedBatch(
                begun_us=now_us - round((now - content.opened_at) * 1_000_000),
                ended_us=now_us,
                commit_s=now - begun_s,
                epoch=self._publisher.constants.epoch,
                position_lsn=state.resume_lsn,
                commits=commits,
                commit_ts_us=state.commit_ts_us if partial is None else self._assembler.newest_commit_ts_us,
                is_partial=partial is not None,
                records=content.records,
                rows=state.seq - self._committed.seq,
                bytes=content.bytes,
                topics=content.topics,
            )
        )

    def _idle_position_is_due(self, now: float) -> bool:
        """Returns whether keepalives moved the position while there was nothing to publish."""
        return (
            not self._assembler.in_transaction
            and self._assembler.state.resume_lsn > self._committed.resume_lsn
            and now - self._position_at >= self._limits.idle_position_s
        )

    # ---- 4. progress: the offsets below which everything up to an LSN lies

    def _request_cut(self) -> None:
        """Requests end offsets where they can be those of one position: right after a commit."""
        now = self._clock.monotonic()
        if self._committed.resume_lsn <= self._cut_lsn:
            return
        is_awaited = self._schedule.awaits_cuts and now - self._cut_at >= self._cut_pause_s
        if is_awaited or (self._progress_request is None and self._progress_is_due(now)):
            self._request_progress(now, is_awaited=is_awaited)

    def _awaits_cut(self, now: float) -> bool:
        request = self._progress_request
        return request is not None and request.is_awaited and now - request.asked_at < CUT_WAIT_S_MAX

    def _await_cut(self, now: float) -> None:
        if self._progress_request is not None:
            waited_s = now - self._progress_request.asked_at
            self._cut_pause_s = max(CUT_INTERVAL_S, CUT_WAIT_TIMES * waited_s)
        self._while_waiting()
        self._ask_progress(now)
        if self._awaits_cut(now):
            self._stream.wait(ANSWER_WAIT_S)

    def _progress_is_due(self, now: float) -> bool:
        return (now - self._progress_asked_at) * 1000 >= self._limits.progress_interval_ms

    def _request_progress(self, now: float, *, is_awaited: bool = False) -> None:
        # Requested after the commit of this LSN has returned, so the answer is above all of its records. The last
        # stable offset can still be below them: a commit returns before its markers are written.
        # What is owed is taken at the same time: what was paid later may be above the offsets.
        self._progress_request = ProgressRequest(
            self._broker.request_end_offsets(),
            self._committed,
            self._snapshots.owed,
            self._produced if self._is_clean else None,
            now,
            is_awaited,
        )
        self._progress_asked_at = now
        if is_awaited:
            self._cut_at = now

    def _ask_progress(self, now: float) -> None:
        request = self._progress_request
        if request is not None:
            try:
                end_offsets = request.answer.result()
            except ConnectionLost:
                # The partitions may have other leaders now: request them again. A permanent error reaches the producer.
                self._progress_request = None
                return
            if end_offsets is not None:
                self._progress_request = None
                self._schedule.check_ends(end_offsets)
                self._publisher.on_end_offsets(end_offsets)
                self._publish_progress(request, end_offsets)
        elif self._has_progress and self._progress_is_due(now):
            self._request_progress(now)

    @property
    def _has_progress(self) -> bool:
        """Whether there is something to publish: also a cut at the LSN that was published without one, which nothing
        else asks for if the log does not move on."""
        lsn, owed = self._committed.resume_lsn, self._snapshots.owed
        lacks_cut = self._is_clean and lsn > self._cut_lsn
        return lsn > self._progress_lsn or owed != self._progress_owed or lacks_cut

    @property
    def _is_clean(self) -> bool:
        """Whether everything that was produced is committed, and is of whole transactions."""
        return self._produced == self._produced_committed and self._committed.partial is None

    def _publish_progress(self, request: ProgressRequest, end_offsets: Mapping[str, Sequence[int]]) -> None:
        constants, state, owed = self._publisher.constants, request.state, request.owed
        is_cut = request.produced == self._produced
        progress = ProgressRecord(
            epoch=constants.epoch,
            seq=state.seq,
            lsn=state.resume_lsn,
            commit_ts_us=state.commit_ts_us,
            published_ts_us=self._clock.now_us(),
            end_offsets={topic: tuple(offsets) for topic, offsets in end_offsets.items()},
            unpublished=self._assembler.unpublished,
            owed=dict(owed),
            history=constants.history,
            incarnations={
                topic: constants.topics[topic].identity for topic in end_offsets if topic in constants.topics
            },
            starts={
                topic: state.start_offsets for topic, state in constants.topics.items() if any(state.start_offsets)
            },
            is_cut=is_cut,
        )
        self._produce_aside(progress.to(self._topics.progress))
        self._progress_lsn, self._progress_owed = state.resume_lsn, owed
        if is_cut:
            self._cut_at, self._cut_lsn = self._clock.monotonic(), Lsn(state.resume_lsn)

    # ---- status updates

    def _send_status(self, *, asks: bool = False) -> None:
        """Sends a status update. `asks`: requests a keepalive, which confirms the position of the last one."""
        self._stream.send_status(self._confirmation.received, self._confirmation.confirmed, reply_requested=asks)
        self._assembler.reply_requested = False
        self._status_at = self._clock.monotonic()
        self._keepalive_asked_at = self._status_at if asks else self._keepalive_asked_at
        self._probe("status.sent")

    def _while_waiting(self) -> None:
        """Keeps the replication connection alive while the brokers are slow or unreachable."""
        if self._clock.monotonic() - self._status_at >= self._schedule.status_interval_s:
            self._send_status()


def _split_at_last_commit(frames: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Returns the frames up to the last end of a transaction, and the frames after it."""
    for i in range(len(frames) - 1, -1, -1):
        if is_commit(frames[i]):
            return frames[: i + 1], frames[i + 1 :]
    return (), frames

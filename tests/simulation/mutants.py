"""Captures that are wrong in one place. A judge that lets one of them pass would let the mistake pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdc.capture.assembler import Assembler
from cdc.capture.consistent_load import InitialLoad
from cdc.capture.kafka_transaction import Publisher
from cdc.capture.loop import Capture, ProgressRequest
from cdc.capture.stream_state import StreamState
from cdc.capture.toast_batch import BatchRecord
from cdc.model.control import PositionRecord
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from tests.simulation.run import TOPICS, Parts
from tests.support.holes import finished


class ConfirmsWhatItReceived(Capture):
    def _send_status(self, *, asks: bool = False) -> None:
        self._confirmation.on_recorded(Lsn(self._confirmation.received))
        super()._send_status(asks=asks)


class ConfirmsBeforeTheCommit(Capture):
    def _commit(self) -> None:
        self._confirmation.on_recorded(Lsn(min(self._assembler.state.resume_lsn, self._confirmation.received)))
        self._send_status()
        super()._commit()


class CommitsThePositionAfterTheData(Capture):
    def _commit(self) -> None:
        if self._publisher.is_open:
            self._broker.commit(self._while_waiting)
        super()._commit()


class CommitsThePositionBeforeTheData(Capture):
    def _produce(self, records: Sequence[TopicRecord], *, is_begun: bool = False) -> None:
        if records and not self._publisher.is_open:
            position = self._publisher.position(self._assembler.state)
            self._broker.produce([position.to(TOPICS.state)], _nothing)
            self._broker.commit(self._while_waiting)
        super()._produce(records, is_begun=is_begun)


class FallsSilentWhileItWaits(Capture):
    def _while_waiting(self) -> None:
        pass


class AsksForOffsetsTooEarly(Capture):
    def _ask_progress(self, now: float) -> None:
        covered, self._committed = self._committed, self._assembler.state
        super()._ask_progress(now)
        self._committed = covered

    def _request_cut(self) -> None:
        pass  # that is asked right after a commit


class TakesEachPositionForACut(Capture):
    def _publish_progress(self, request: ProgressRequest, end_offsets: Mapping[str, Sequence[int]]) -> None:
        super()._publish_progress(replace(request, produced=self._produced), end_offsets)


class ForgetsWhatIsHalfPublished(Publisher):
    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        return super().position(replace(state, partial=None), is_loading=is_loading)


class CountsOneChangeTooMany(Publisher):
    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        if state.partial is not None:
            partial = state.partial.model_copy(update={"next_index": state.partial.next_index + 1})
            state = replace(state, partial=partial)
        return super().position(state, is_loading=is_loading)


class CountsOneChangeTooFew(Publisher):
    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        if state.partial is not None:
            partial = state.partial.model_copy(update={"next_index": state.partial.next_index - 1})
            state = replace(state, partial=partial)
        return super().position(state, is_loading=is_loading)


class ResumesAtTheCommitRecord(Publisher):
    """Its LSN instead of its end's: the server sends the transaction again."""

    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        if not is_loading:
            state = replace(state, resume_lsn=Lsn(state.resume_lsn - 48))
        return super().position(state, is_loading=is_loading)


class EndsInsideATransactionThatFits(Publisher):
    def is_due(self, now: float, *, is_dry: bool, is_begun: bool = False) -> bool:  # noqa: ARG002
        return super().is_due(now, is_dry=is_dry)


class NumbersFromOneAgain(Assembler):
    def __init__(self, schemas: Any, context: Any, resume: StreamState, *others: Any) -> None:
        super().__init__(schemas, context, replace(resume, seq=0), *others)


class SkipsWhatCommitsAtThePosition(Assembler):
    def __init__(self, schemas: Any, context: Any, resume: StreamState, *others: Any) -> None:
        super().__init__(schemas, context, resume, *others)
        self._published_below = Lsn(resume.resume_lsn + 1)


class PublishesWhatIsPublished(Assembler):
    def __init__(self, schemas: Any, context: Any, resume: StreamState, *others: Any) -> None:
        super().__init__(schemas, context, resume, *others)
        self._published_below = Lsn(0)


class LeavesOutTombstones(Assembler):
    def consume(self, frames: Sequence[bytes], now_us: int) -> tuple[list[BatchRecord], UnsupportedChangeError | None]:
        records, failure = super().consume(frames, now_us)
        return [record for record in finished(records) if record.value is not None], failure


class LoadsWithoutSweep(InitialLoad):
    def _finish(self, counts: Mapping[TableId, int], covered: Sequence[TopicRecord]) -> None:  # noqa: ARG002
        super()._finish({}, covered)


MUTANTS: dict[str, Parts] = {
    "confirms what it received": Parts(capture=ConfirmsWhatItReceived),
    "confirms before the commit": Parts(capture=ConfirmsBeforeTheCommit),
    "commits the position after the data": Parts(capture=CommitsThePositionAfterTheData),
    "commits the position before the data": Parts(capture=CommitsThePositionBeforeTheData),
    "falls silent while it waits": Parts(capture=FallsSilentWhileItWaits),
    "asks for end offsets before the commit": Parts(capture=AsksForOffsetsTooEarly),
    "takes each position for a cut": Parts(capture=TakesEachPositionForACut),
    "forgets what is half published": Parts(publisher=ForgetsWhatIsHalfPublished),
    "counts one change too many": Parts(publisher=CountsOneChangeTooMany),
    "counts one change too few": Parts(publisher=CountsOneChangeTooFew),
    "resumes at the commit record": Parts(publisher=ResumesAtTheCommitRecord),
    "ends inside a transaction that fits": Parts(publisher=EndsInsideATransactionThatFits),
    "numbers from one again": Parts(assembler=NumbersFromOneAgain),
    "skips what commits at the position": Parts(assembler=SkipsWhatCommitsAtThePosition),
    "publishes what is published": Parts(assembler=PublishesWhatIsPublished),
    "leaves out tombstones": Parts(assembler=LeavesOutTombstones),
    "loads without sweep": Parts(load=LoadsWithoutSweep),
    "does not read the position again when fenced": Parts(reads_again_when_fenced=False),
    "keeps the epoch of a load that did not end": Parts(keeps_the_epoch=True),
}

_nothing: Callable[[], None] = lambda: None  # noqa: E731

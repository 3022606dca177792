"""The rebuild of a sink in its serving job: the request, the builder that fulfils it, and the swap."""

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import structlog

from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.sink_records import SinkRecord
from sinks.errors import FullError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.slots import Slots, slot_of
from spark_jobs.applied import Applied
from spark_jobs.generations import next_generation

log = structlog.get_logger(__name__)

END_S_MAX: Final = 8.0  # for a builder that was asked to stop
NEXT_FULL: Final = (
    "free space, then start the rebuild again; what it had built is deleted, and readers keep the former generation"
)
SERVING_SILENT_S: Final = 60.0  # a generation whose position is older is not written now


class RebuildControl(Protocol):
    """The records of the control and progress topics that a rebuild reads."""

    @property
    def sinks(self) -> Mapping[str, SinkRecord]: ...
    @property
    def rebuilds(self) -> Mapping[str, RebuildRecord]: ...
    @property
    def schema_histories(self) -> Mapping[TableId, SchemaHistory]: ...


class GenerationBuilder(Protocol):
    """The interface of spark_jobs.building.Builder."""

    refusal: WatershedError | None

    @property
    def is_ready(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def join(self, timeout_s: float) -> bool: ...
    def reaches(self, goal: Applied, timeout_s: float) -> bool: ...


def swap_goal(published: Applied, serving: SinkRecord | None, now_s: float) -> tuple[int, int]:
    """The position (epoch, LSN) that a new generation must show before it may serve: what is published. Where the
    serving generation lags behind that while its job writes it, the new one need not do better: a machine on which
    stores lag for long would otherwise never swap."""
    whole = published[:2]
    if serving is None or serving.epoch == 0 or now_s - serving.applied_ts_us / 1_000_000 > SERVING_SILENT_S:
        return whole
    return min(whole, (serving.epoch, serving.applied_lsn))


ErrorCallback = Callable[[str, str], None]
# (slot, generation), of failures, the request
BuilderFactory = Callable[[tuple[str, int], ErrorCallback, RebuildRecord], GenerationBuilder]


class Rebuild:
    """Follows the requests for one sink. Called by the thread of its serving job."""

    def __init__(
        self,
        sink: str,
        slots: Slots,
        publish: Callable[[RebuildRecord], None],
        builder: BuilderFactory,
        old_s: float,
        adopt: Callable[[RebuildRecord], None] = lambda _: None,
    ) -> None:
        """`old_s`: a generation that was not updated for so long is not taken back. `adopt`: called before a generation
        serves of which only some tables were built, when nothing is written to either."""
        self.refusal: WatershedError | None = None  # why the last one failed
        self._sink = sink
        self._slots = slots
        self._publish = publish
        self._open_builder = builder
        self._old_s = old_s
        self._adopt = adopt
        self._request: RebuildRecord | None = None
        self._slot = ""
        self._builder: GenerationBuilder | None = None
        self._ended_requests: set[str] = set()  # requests that have ended; the topic may not say so yet

    @property
    def ended_count(self) -> int:
        """The number of requests that have ended: the store may hold fewer generations since."""
        return len(self._ended_requests)

    @property
    def is_ready(self) -> bool:
        """Returns whether another generation can replace the serving one."""
        return self._builder is not None and self._builder.is_ready

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing is being built, although something was."""
        return self._request is None and bool(self._ended_requests)

    def follow(self, control: RebuildControl, *, is_needed: bool = True) -> bool:
        """Begins a requested rebuild, and ends a cancelled one. Returns is_ready. Raises WatershedError if a rebuild
        of all tables that was not requested by a user can't begin, and the serving generation is not kept up to date
        without it (`is_needed`).
        """
        request = control.rebuilds.get(self._sink)
        is_open = request is not None and request.is_open and request.request not in self._ended_requests
        held = self._request
        if held is not None and (request is None or not is_open or request.request != held.request):
            self._give_up()
            if request is None or request.request == held.request:
                self._end_request(held, "cancelled", "cancelled")
        elif held is not None and self._builder is not None and self._builder.refusal is not None:
            self.refusal = self._builder.refusal
            self._give_up()
            is_full = isinstance(self.refusal, FullError)
            self._end_request(held, "failed", self.refusal.message, NEXT_FULL if is_full else self.refusal.hint)
        elif held is None and request is not None and is_open:
            self._begin(request, control, is_needed=is_needed)
        return self.is_ready

    def reaches(self, goal: Applied, timeout_s: float) -> bool:
        """Waits until the new generation shows this position. Returns False after the time."""
        return self._builder is not None and self._builder.reaches(goal, timeout_s)

    def complete(self) -> None:
        """Lets the new generation serve. The caller writes nothing to the former one meanwhile."""
        request, builder = self._request, self._builder
        assert request is not None and builder is not None
        builder.stop()
        if not builder.join(END_S_MAX):
            raise SinkError(
                f"{self._sink}: the rebuild's last batch does not end", "nothing to do: the job tries again"
            )
        self._builder = None
        former = self._slots.generation(self._slots.serving())
        try:
            if request.tables:
                self._adopt(request)
            self._slots.serve(self._slot, adopts=bool(request.tables))
        except SinkError as error:
            self._publish(request.model_copy(update={"message": error.message, "next": error.hint}))
            raise
        log.info("generation serves", sink=self._sink, generation=request.generation)
        self._finish(request, former)

    def stop(self) -> None:
        """Requests the builder's end after its batch; `close` waits for it."""
        if self._builder is not None:
            self._builder.stop()

    def close(self) -> None:
        """Releases resources. The generation that is being built stays, and the next job continues it."""
        self.stop()
        if self._builder is not None:
            self._builder.join(END_S_MAX)

    def _begin(self, request: RebuildRecord, control: RebuildControl, *, is_needed: bool) -> None:
        serving = self._slots.serving()
        try:
            if request.generation and self._slots.generation(serving) == request.generation:
                self._finish(request, None)  # the job was killed behind the swap
                return
            match request.action:
                case "drop":
                    self._drop_others(request)
                case "rollback":
                    self._start(request, self._kept(control))
                case _:
                    self._start(request, self._new(request, control))
        except WatershedError as error:
            if is_needed and not request.keeps_old and not request.tables:
                raise
            self.refusal = error
            self._end_request(request, "failed", error.message, error.hint)

    def _start(self, request: RebuildRecord, target: tuple[str, int]) -> None:
        begun = request.model_copy(update={"status": "running", "generation": target[1]})
        self._publish(begun)

        def report(message: str, hint: str) -> None:
            self._publish(begun.model_copy(update={"message": message, "next": hint}))

        self._request, self._slot = begun, target[0]
        self._builder = self._open_builder(target, report, begun)
        self._builder.start()
        tables = " ".join(request.tables) or "all"
        log.info("rebuild begins", sink=self._sink, generation=target[1], action=request.action, tables=tables)

    def _new(self, request: RebuildRecord, control: RebuildControl) -> tuple[str, int]:
        """Returns the generation to build: the one that was begun, or a new one."""
        own = {record.generation: record for record in control.sinks.values() if record.sink == self._sink}
        others = self._slots.others()
        if request.generation:
            return slot_of(request.generation), request.generation
        kept = [number for number in others.values() if number in own and own[number].role == "kept"]
        if kept and request.keeps_old:
            raise SinkError(
                f"{self._sink}: generation {kept[0]} is still kept for a rollback",
                f"--rollback switches readers back to it; if nobody needs it any more: cdc rebuild --sink {self._sink} "
                "--drop-old, then start again",
            )
        for slot in others:  # what was begun and given up, too
            self._slots.drop(slot)
        self._slots.check_room(request.table_ids)
        generation = next_generation(self._slots.generation(self._slots.serving()), own)
        return slot_of(generation), generation

    def _kept(self, control: RebuildControl) -> tuple[str, int]:
        """Returns the generation that was replaced last."""
        if self._slots.in_place:
            raise SinkError(
                f"{self._sink}: this store is rebuilt in place, so there is no former generation",
                f"cdc rebuild --sink {self._sink} writes every row again",
            )
        for slot, generation in self._slots.others().items():
            record = control.sinks.get(SinkRecord.key_of(self._sink, generation)) if generation is not None else None
            if record is None or record.role != "kept":
                continue
            if time.time() - record.applied_ts_us / 1_000_000 > self._old_s:
                raise SinkError(
                    f"{self._sink}: generation {record.generation} was not updated for longer than half the time for "
                    "which topics keep deletes, so it may not be able to catch up",
                    f"cdc rebuild --sink {self._sink} --drop-old, then cdc rebuild --sink {self._sink}",
                )
            return slot, record.generation
        raise SinkError(
            f"{self._sink}: no former generation is kept, so a rollback is not possible",
            f"cdc rebuild --sink {self._sink} builds a new one",
        )

    def _drop_others(self, request: RebuildRecord) -> None:
        dropped = self._slots.others()
        for slot in dropped:
            self._slots.drop(slot)
        names = ", ".join(str(generation or slot) for slot, generation in dropped.items())
        self._end_request(request, "done", f"dropped: generation {names}" if dropped else "no other generation is kept")

    def _finish(self, request: RebuildRecord, former: int | None) -> None:
        """Completes the rebuild after the swap. `former`: the generation that served before."""
        message = f"generation {request.generation} serves"
        if request.tables:
            message += f"; built for it: {', '.join(request.tables)}"
        if self._slots.in_place:
            self._slots.drop(slot_of(request.generation))
        elif not request.keeps_old:
            for slot in self._slots.others():
                self._slots.drop(slot)
        elif former is not None and former != request.generation:
            message += f"; generation {former} is kept"
        self._end_request(request, "done", message)

    def _give_up(self) -> None:
        """Ends the builder and deletes its generation. A replaced generation that was kept stays."""
        request = self._request
        assert request is not None
        self.close()
        if request.action == "rebuild":
            self._slots.drop(self._slot)
        self._request = self._builder = None

    def _end_request(
        self, request: RebuildRecord, status: Literal["done", "failed", "cancelled"], message: str, hint: str = ""
    ) -> None:
        self._ended_requests.add(request.request)
        self._request = None
        self._publish(request.model_copy(update={"status": status, "message": message, "next": hint}))
        log.info("rebuild ended", sink=self._sink, status=status, because=message)

"""The generation of a sink that readers see, and its replacement by another one."""

import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from dataclasses import dataclass

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.config.config_file import Config
from cdc.daemon.conditions import Conditions
from cdc.model.control import table_key
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import RefusedError, SinkError
from spark_jobs.building import Builder
from spark_jobs.generations import next_generation, reshaped_tables
from spark_jobs.rebuild import ErrorCallback, Rebuild
from spark_jobs.sinks_file import SinkConfig
from spark_jobs.starting import (
    INCLUDED,
    RESHAPED,
    TOO_OLD,
    continued,
    first_position,
    has_lost_writes,
    included_again,
    is_foreign,
    is_too_old,
    must_be_built_again,
    never_held,
    parse_position,
    still_disowned,
    too_old_s,
    why_filled_again,
    with_rows_owed,
    with_writes_owed,
)
from spark_jobs.sync import SinkSync
from spark_jobs.worker import WATCH_S, OpenSink, PipelineConnections, SinkWorker, is_filled_in_place

log = structlog.get_logger(__name__)

SWAP_S_MAX = 60.0  # until the new generation shows what the former one showed last


@dataclass(frozen=True, slots=True)
class SinkFile:
    """One sink's part of SinksFile."""

    now: Callable[[], SinkConfig]
    opener: Callable[[Config], Callable[[str | None], OpenSink]]
    follow: Callable[[int], None]


class ServingWorker(SinkWorker):
    """Keeps the serving generation up to date. A generation that was requested with `cdc rebuild`, or that a changed
    mapping requires, is built beside it, and replaces it when it has caught up.
    """

    _rebuild: Rebuild | None = None
    _generation: int | None = None  # that this job filled or continued, or that readers see while another is built
    _number = 0  # SinkConfig.number of this attempt

    def __init__(
        self,
        name: str,
        config: Config,
        spark: SparkSession,
        open_sink: Callable[[str | None], OpenSink],
        stop: threading.Event,
        conditions: Conditions,
        file: SinkFile | None = None,
    ) -> None:
        """`file`: what may change while the sink runs; None: nothing."""
        super().__init__(name, config, spark, open_sink, stop, conditions)
        self._file = file

    def _run_once(self) -> None:
        self._take_up()
        super()._run_once()

    def _take_up(self) -> None:
        """The attempt that begins has the newest configuration."""
        if self._file is not None and (now := self._file.now()).number != self._number:
            log.info("the sink continues with its new configuration", sink=self.name)
            self._number, self._config = now.number, now.config
            self._section = now.config.sinks[self.name]
            self._open_sink = self._file.opener(now.config)

    def _is_outdated(self, connections: PipelineConnections) -> bool:
        """Says whether the next attempt has another configuration. Asks for it where capture was told to."""
        if self._file is None:
            return False
        self._file.follow(connections.control.reload_us)
        return self._file.now().number != self._number

    def _work(self, stack: ExitStack, connections: PipelineConnections) -> None:
        if self._is_outdated(connections):  # a standby begins with what is in force now
            return
        opened = self._open_sink(None)
        stack.enter_context(closing(opened))
        self._rebuild = rebuild = self._rebuild_of(opened, connections)
        if rebuild is not None:
            stack.enter_context(closing(rebuild))
        begun = self._begin(opened, connections)
        self._close_other_dead_letters(opened, connections)
        sync = None if begun is None else begun[0]
        if begun is not None:
            stack.enter_context(self._maintained(opened))
            self._run_queries(
                *begun,
                is_over=lambda: (
                    self._is_outdated(connections)
                    or (rebuild is not None and self._follow(rebuild, opened, connections))
                ),
            )
        elif rebuild is not None:
            self._report("rebuilding")
            while not self._stop.is_set() and not self._follow(rebuild, opened, connections):
                if self._is_outdated(connections):
                    return
                if rebuild.refusal is not None:
                    raise rebuild.refusal
                if rebuild.is_idle:
                    raise SinkError(
                        f"{self.name}: the rebuild was cancelled, but the store can't be continued without one",
                        "nothing to do: it begins again; restore the sink's former configuration to do without it",
                    )
                self._stop.wait(WATCH_S)
                connections.control.read()
        if self._is_outdated(connections):
            return
        if rebuild is not None and rebuild.is_ready and not self._stop.is_set():
            self._replace(rebuild, sync, connections)

    def _follow(self, rebuild: Rebuild, opened: OpenSink, connections: PipelineConnections) -> bool:
        ended_before = rebuild.ended_count
        is_ready = rebuild.follow(connections.control)
        if rebuild.ended_count != ended_before:
            self._close_other_dead_letters(opened, connections)
        return is_ready

    def _close_other_dead_letters(self, opened: OpenSink, connections: PipelineConnections) -> None:
        """Closes the dead letters of generations that the store does not hold any more."""
        rebuild_request = connections.control.rebuilds.get(self.name)
        held = {
            self._generation,
            rebuild_request.generation if rebuild_request is not None and rebuild_request.is_open else None,
        }
        held |= set(opened.slots.others().values()) if opened.slots is not None else set()
        with closing(self._open_dead_letters(self._generation or 0)) as dead_letters:
            dead_letters.close_others([generation for generation in held if generation is not None])

    @property
    def _old_s(self) -> float:
        return too_old_s(self._config.topics.config.deletes_kept_s)

    def _rebuild_of(self, opened: OpenSink, connections: PipelineConnections) -> Rebuild | None:
        if opened.slots is None:
            return None

        def builder(target: tuple[str, int], on_error: ErrorCallback, is_rollback: bool) -> Builder:
            name, config = self.name, self._config
            return Builder(name, config, self._spark, self._open_sink, target, on_error, is_rollback=is_rollback)

        def publish(record: RebuildRecord) -> None:
            connections.writer.send(record)

        return Rebuild(self.name, opened.slots, publish, builder, self._old_s)

    def _begin(self, opened: OpenSink, connections: PipelineConnections) -> tuple[SinkSync, int] | None:
        """Decides the generation, and prepares the store for it. Returns None after a request to stop, or if another
        generation must be built beside the one that readers see, which is not written any more.
        """
        slots, sink = opened.slots, opened.sink
        marker, saved = sink.generation(), parse_position(sink.saved_position())
        if marker is not None and connections.published is None and not self._wait_for_history(connections):
            return None
        last = continued(marker, saved, connections.history)
        held = marker if marker is not None or slots is None else slots.generation(opened.slot)
        reshaped = self._reshaped(connections, last)
        included = [] if last is None else included_again(last, self._section.holds)
        if last is None:
            reason = why_filled_again(marker, held, saved, connections.history)
        else:
            reason = RESHAPED if reshaped else INCLUDED if included else ""
        if reason and held is not None and slots is not None and not slots.in_place:
            self._request_rebuild(connections, reason)
            self._generation = held
            self._keep_checkpoints(held, connections)
            self._publish_held(held, last, connections)
            return None
        is_old = last is not None and is_too_old(last, connections.published, _now_us(), self._old_s)
        if last is None or included or (slots is None and (reshaped or is_old)):
            start = self._begin_again(opened, connections, saved, reshaped, included)
        else:
            start = self._continued(opened, connections, last, is_old=is_old)
            is_old = is_old or must_be_built_again(last)  # and the request for it was cancelled, or has failed
            if is_old or reshaped:
                self._request_rebuild(connections, TOO_OLD if is_old else RESHAPED)
        self._generation = start.generation
        self._keep_checkpoints(start.generation, connections)
        sync = self._begin_sync(opened, connections, start)
        log.info("sink starts", sink=self.name, generation=start.generation, new=start.generation != marker)
        return sync, start.generation

    def _wait_for_history(self, connections: PipelineConnections) -> bool:
        """Waits until capture has published a position: before that, it is not known whether the store was filled from
        these topics. Returns False after a request to stop."""
        log.info("waiting for capture to publish its position", sink=self.name)
        while connections.published is None:
            if self._stop.wait(WATCH_S):
                return False
            connections.add(connections.control.read())
        return True

    def _continued(
        self, opened: OpenSink, connections: PipelineConnections, last: SinkRecord, *, is_old: bool
    ) -> SinkRecord:
        """Returns the position from which the generation that the store holds is continued."""
        schema_histories = connections.control.schema_histories
        start = last
        published = connections.control.sinks.get(last.record_key)
        if published is not None and has_lost_writes(last, published):
            start = with_writes_owed(start, schema_histories)
            log.warning(
                "the store has lost its last writes, and is continued from where it is",
                sink=self.name,
                published=format_lsn(Lsn(published.applied_lsn)),
                held=format_lsn(Lsn(last.applied_lsn)),
            )
        if is_old:
            start = with_rows_owed(start, schema_histories)
        if is_filled_in_place(opened):
            for table in (new := never_held(last, schema_histories.values())):
                opened.sink.reset_versions(table)
            start = start.model_copy(update={"sweeps": start.sweeps | {table_key(table): 0 for table in new}})
        return start

    def _publish_held(self, held: int, saved: SinkRecord | None, connections: PipelineConnections) -> None:
        """Publishes what the generation shows that readers see until another one is built. The store may have lost
        writes, or be an older copy, since its position was published: a waiter must not be answered by that."""
        published = newest(connections.control.sinks.values(), self.name)
        if published is not None:  # else nobody is promised anything
            if saved is not None and has_lost_writes(saved, published):
                saved = with_writes_owed(saved, connections.control.schema_histories)
            nothing = {"generation": held, "epoch": 0, "applied_lsn": 0, "commit_ts_us": 0}
            shown = saved or published.model_copy(update=nothing)
            job = self._next_job(connections, published)
            connections.writer.publish(shown.model_copy(update={"role": "serving", "job": job}))

    def _begin_again(
        self,
        opened: OpenSink,
        connections: PipelineConnections,
        saved: SinkRecord | None,
        reshaped: Collection[TableId],
        included: Collection[TableId],
    ) -> SinkRecord:
        """Begins a new generation in place of the serving one. `included`: tables that were excluded. Returns its
        position."""
        sink, marker = opened.sink, opened.sink.generation()
        numbers = [record.generation for record in connections.control.sinks.values() if record.sink == self.name]
        generation = next_generation(marker, [*numbers, *([] if saved is None else [saved.generation])])
        foreign = is_foreign(marker, saved, connections.history, _now_us(), self._old_s)
        known = sorted(connections.control.schema_histories)
        # Rows that were rejected at the version of a sweep's floor are stale behind that sweep: a generation that is
        # filled again over such deletions would not reject them again. (A cache's rebuild writes equal versions again.)
        has_deletions = opened.slots is None and (marker is not None or saved is not None)
        tables = known if foreign or has_deletions else sorted({*included, *still_disowned(saved, known)})
        reset = [table for table in tables if table not in reshaped]
        start = first_position(self.name, generation, connections.history, reset, _now_us())
        start = start.model_copy(update={"job": self._next_job(connections, saved)})
        # Before rows go: from now on no waiter is answered by the former generation's position.
        connections.writer.publish(self._complete(connections.control, start))
        sink.begin_generation(generation)
        for table in reshaped:
            sink.discard(table)
        for table in reset:
            sink.reset_versions(table)
        sink.save_position(start.encode().decode(), None)
        return start

    def _keep_checkpoints(self, generation: int, connections: PipelineConnections) -> None:
        rebuild_request = connections.control.rebuilds.get(self.name)
        self._checkpoints.keep_only(
            {generation}
            | ({rebuild_request.generation} if rebuild_request is not None and rebuild_request.is_open else set())
        )

    def _request_rebuild(self, connections: PipelineConnections, why: str) -> None:
        """Requests a rebuild that no user has requested, unless one is in progress."""
        rebuild_request = connections.control.rebuilds.get(self.name)
        if rebuild_request is None or not rebuild_request.is_open or rebuild_request.action != "rebuild":
            log.info("the store is built again beside the serving one", sink=self.name, because=why)
            rebuild_request = RebuildRecord(
                sink=self.name,
                request=secrets.token_hex(8),
                action="rebuild",
                status="running",
                keeps_old=False,
                message=why,
                asked_us=time.time_ns() // 1000,
            )
            connections.writer.send(rebuild_request)
            connections.control.rebuilds[self.name] = rebuild_request

    def _reshaped(self, connections: PipelineConnections, serving: SinkRecord | None) -> list[TableId]:
        """Returns the tables whose rows the store holds in another shape than the mapping's."""
        published = [record for record in connections.control.sinks.values() if record.sink == self.name]
        last = serving or newest(published, self.name)
        reshaped = reshaped_tables(self._section, connections.control.schema_histories.values(), last)
        self._mappings = dict(last.mappings) if last is not None else {}
        if reshaped and last is not None:
            if self._generation is not None and last.generation != self._generation:
                raise RefusedError(
                    f"{self.name}: another job fills the store with a different mapping (generation {last.generation})",
                    "a sink must have only one configuration: stop one of the two jobs",
                )
            log.info("mapping changed: the store is filled again", sink=self.name, tables=" ".join(map(str, reshaped)))
        return reshaped

    def _replace(self, rebuild: Rebuild, sync: SinkSync | None, connections: PipelineConnections) -> None:
        """Lets the new generation serve. The former generation is first recorded as kept, so that readers who wait for
        an LSN get no answer until the new one has published as serving: whichever of both generations they then read
        shows the LSN that they were promised.
        """
        if sync is not None:
            sync.run_housekeeping()
        if self._generation is not None:
            connections.control.read()
            # A store that was restored from an older copy may have lost generations; they answer nobody from now on,
            # not even between these records: the newest, of the generation that readers see, is the last.
            own = [one for one in connections.control.sinks.values() if (one.sink, one.role) == (self.name, "serving")]
            for record in sorted(own, key=lambda one: (one.job, one.generation)):
                connections.writer.publish(record.model_copy(update={"role": "kept"}))
            if sync is not None and not rebuild.reaches(sync.applied, SWAP_S_MAX):
                raise SinkError(
                    f"{self.name}: the new generation did not catch up in {SWAP_S_MAX:.0f} s, while nothing was "
                    "written to the former one",
                    "nothing to do: readers keep the former generation, and the rebuild continues",
                )
        rebuild.complete()

    def _end(self, query: StreamingQuery, sync: SinkSync) -> None:
        if self._stop.is_set() and self._rebuild is not None:
            self._rebuild.stop()
        super()._end(query, sync)


def _now_us() -> int:
    return time.time_ns() // 1000

"""The generation of a sink that readers see, and its replacement by another one."""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeGuard

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.config.config_file import Config
from cdc.config.store_mapping import TableMapping
from cdc.config.stores import StoreConfig
from cdc.daemon.conditions import Conditions
from cdc.model.control import table_key
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import MappingsRecord, RebuildRecord
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.slots import Slots, slot_of
from spark_jobs.build_plan import IN_PLACE, NOT_WRITTEN, UP_TO_DATE, fits
from spark_jobs.building import Builder
from spark_jobs.dead_letters import adopted_dead_letters
from spark_jobs.generations import former_mappings, next_generation, reshaped_tables
from spark_jobs.observing import SinkObserver
from spark_jobs.rebuild import ErrorCallback, Rebuild
from spark_jobs.sink_thread import WATCH_S, OpenSink, PipelineConnections, SinkThread, is_filled_in_place
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
    with_adopted,
    with_rows_owed,
    with_writes_owed,
)
from spark_jobs.sync import SinkSync

log = structlog.get_logger(__name__)

SWAP_S_MAX = 60.0  # until the new generation shows what the former one showed last


@dataclass(frozen=True, slots=True)
class SinkFile:
    """One sink's part of SinksFile."""

    now: Callable[[], SinkConfig]
    opener: Callable[[Config], Callable[[str | None], OpenSink]]
    follow: Callable[[int], None]


class ServingThread(SinkThread):
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
        observer: SinkObserver | None = None,
    ) -> None:
        """`file`: what may change while the sink runs; None: nothing."""
        super().__init__(name, config, spark, open_sink, stop, conditions, observer)
        self._file = file
        self._histories: Mapping[TableId, SchemaHistory] = {}  # of this attempt
        self._requests: set[str] = set()  # of rebuilds for the present configuration, that were open in this process

    def _run_once(self) -> None:
        self._take_up()
        super()._run_once()

    def _take_up(self) -> None:
        """The attempt that begins has the newest configuration."""
        if self._file is not None and (now := self._file.now()).number != self._number:
            log.info("the sink continues with its new configuration", sink=self.name)
            self._number, self._config = now.number, now.config
            self._requests.clear()
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
        opened = self._opened(connections)
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

    # ---- tables whose mapping has changed

    def _opened(self, connections: PipelineConnections) -> OpenSink:
        """Opens the store. Until tables whose mapping has changed are built again, their serving rows are written as
        they are."""
        self._histories, self._written_as = connections.control.schema_histories, self._section
        opened = self._open_sink(None)
        try:
            former = self._former_mappings(opened, connections)
        except BaseException:
            opened.close()
            raise
        if not former:
            return opened
        opened.close()
        self._written_as = self._section.with_mappings(former)
        return self._opener(self._written_as)(None)

    def _former_mappings(self, opened: OpenSink, connections: PipelineConnections) -> dict[TableId, TableMapping]:
        """Returns the mappings of tables that are built beside what readers see, which is written meanwhile; nothing if
        there are none, or if all tables must be built."""
        slots, sink = opened.slots, opened.sink
        if self._file is None or slots is None or slots.in_place or (marker := sink.generation()) is None:
            return {}
        if connections.published is None and not self._wait_for_history(connections):
            return {}
        last = continued(marker, parse_position(sink.saved_position()), connections.history)
        if last is None or self._must_build_all(last, connections):
            return {}
        reshaped = reshaped_tables(self._section, self._histories.values(), last)
        known = connections.control.mappings.get(self.name)
        former = former_mappings(self._section, reshaped, last, {} if known is None else known.mappings)
        is_fit = fits(self.name, self._section.with_mappings(former), self._histories.values())
        return former if is_fit else {}

    def _must_build_all(self, last: SinkRecord, connections: PipelineConnections) -> bool:
        """Says whether only another generation of all tables can be in step."""
        return (
            bool(included_again(last, self._section.holds))
            or must_be_built_again(last)
            or is_too_old(last, connections.published, _now_us(), self._old_s)
        )

    def _is_permanent(self, error: Exception) -> TypeGuard[WatershedError]:
        """A former mapping that does not fit its altered table any more is no reason to stop: the next attempt does
        without it."""
        is_former = self._written_as is not self._section
        is_unfit = is_former and not fits(self.name, self._written_as, self._histories.values())
        return super()._is_permanent(error) and not is_unfit

    def _opener(self, section: StoreConfig) -> Callable[[str | None], OpenSink]:
        """Returns what opens the store with another section."""
        return self._open_sink if self._file is None else self._file.opener(self._config_with(section))

    def _config_with(self, section: StoreConfig) -> Config:
        return self._config.model_copy(update={"sinks": {**self._config.sinks, self.name: section}})

    def _publish_mappings(self, last: SinkRecord | None, connections: PipelineConnections) -> None:
        """Publishes the mappings that rows have and get, before a position names them by their fingerprints."""
        known = connections.control.mappings.get(self.name)
        used = set() if last is None else set(last.mappings.values())
        wanted = {mark: text for mark, text in (known.mappings if known else {}).items() if mark in used}
        wanted |= {one.fingerprint(): one.to_json() for one in self._section.mapping.values() if not one.is_identity}
        if wanted != (known.mappings if known else {}):
            record = MappingsRecord(sink=self.name, mappings=wanted)
            connections.progress.send(record)
            connections.control.mappings[self.name] = record

    def _withdraw_rebuild(self, slots: Slots, connections: PipelineConnections) -> None:
        """Ends a rebuild that no user has requested, where the configuration is the former one again, unless its
        generation serves already."""
        request = connections.control.rebuilds.get(self.name)
        if request is None or not request.is_open or request.keeps_old:
            return
        if request.generation:
            if slots.generation(slots.serving()) == request.generation:
                return
            slots.drop(slot_of(request.generation))
        ended = request.model_copy(
            update={"status": "cancelled", "message": "the configuration is the former one again"}
        )
        connections.progress.send(ended)
        connections.control.rebuilds[self.name] = ended
        log.info("rebuild ended", sink=self.name, status=ended.status, because=ended.message)

    def _adopt(self, request: RebuildRecord, opened: OpenSink, connections: PipelineConnections) -> None:
        """Prepares a generation of which some tables were built to serve: gives it the position and the dead letters of
        the other tables, which it adopts. Nothing is written to either generation. Can be repeated."""
        former = parse_position(opened.sink.saved_position())
        with closing(self._opener(self._section)(slot_of(request.generation))) as building:
            built = parse_position(building.sink.saved_position())
            is_expected = former is not None and built is not None and built.generation == request.generation
            if former is None or built is None or not is_expected or built.history != former.history:
                raise SinkError(
                    f"{self.name}: the store lacks the position of one of two generations",
                    "nothing to do: readers keep the former generation, and the sink tries again",
                )
            histories = {str(table): history for table, history in connections.control.schema_histories.items()}
            topics = {table: histories[table].newest.topic for table in request.tables if table in histories}
            with (
                closing(self._open_dead_letters(former.generation)) as served_letters,
                closing(self._open_dead_letters(built.generation)) as letters,
            ):
                letters.publish(adopted_dead_letters(served_letters.rows, built.generation, request.table_ids or ()))
            position = with_adopted(built, former, topics, secrets.token_hex(4))
            building.sink.save_position(position.encode().decode(), None)

    # ---- rebuilds

    def _follow(self, rebuild: Rebuild, opened: OpenSink, connections: PipelineConnections) -> bool:
        ended_before = rebuild.ended_count
        is_ready = rebuild.follow(connections.control, is_needed=self._written_as is self._section)
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

        def builder(target: tuple[str, int], on_error: ErrorCallback, request: RebuildRecord) -> Builder:
            tables = request.table_ids
            section = self._section if tables is None else self._section.only(sorted(tables))
            open_sink = self._open_sink if tables is None else self._opener(section)
            config = self._config_with(section)
            return Builder(self.name, config, self._spark, open_sink, target, on_error, request, self._observer)

        def publish(record: RebuildRecord) -> None:
            connections.progress.send(record)

        def adopt(request: RebuildRecord) -> None:
            self._adopt(request, opened, connections)

        return Rebuild(self.name, opened.slots, publish, builder, self._old_s, adopt)

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
        is_whole = last is None or self._must_build_all(last, connections)
        part = [] if is_whole or self._section.is_transactional else reshaped
        is_followed = not is_whole and self._written_as is not self._section
        is_beside = slots is not None and not slots.in_place
        if is_beside:
            self._publish_mappings(last, connections)
        if reason and held is not None and is_beside and not is_followed:
            self._request_rebuild(connections, reason, part, NOT_WRITTEN)
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
                reason, readers = TOO_OLD if is_old else RESHAPED, UP_TO_DATE if is_beside else IN_PLACE
                self._request_rebuild(connections, reason, part, readers, is_added=not is_beside)
            elif slots is not None and is_beside:
                self._withdraw_rebuild(slots, connections)
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
            job_id = self._next_job_id(connections, published)
            connections.progress.publish(shown.model_copy(update={"role": "serving", "job": job_id}))

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
        start = start.model_copy(update={"job": self._next_job_id(connections, saved)})
        # Before rows go: from now on no waiter is answered by the former generation's position.
        connections.progress.publish(self._complete(connections.control, start))
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

    def _request_rebuild(
        self,
        connections: PipelineConnections,
        why: str,
        part: Iterable[TableId],
        readers: str,
        *,
        is_added: bool = False,
    ) -> None:
        """Requests a rebuild that no user has requested, unless one of all tables, or of just these, is in progress,
        or has been ended by a user while the sink does without it.
        `part`: the tables; empty: all. `readers`: what they see meanwhile. `is_added`: those of the rebuild in progress
        are still to be built."""
        last = connections.control.rebuilds.get(self.name)
        is_building = last is not None and last.is_open and last.action == "rebuild"
        tables = set(map(str, part))
        if last is not None and is_building:
            tables |= set(last.tables) if tables and is_added else set()
            if not last.tables or set(last.tables) == tables:
                self._requests.add(last.request)
                return
        has_ended = last is not None and last.status in ("cancelled", "failed") and last.request in self._requests
        if last is not None and has_ended and set(last.tables) == tables and (why, readers) == (RESHAPED, UP_TO_DATE):
            return  # whoever has cancelled it does not want it again because the sink was interrupted
        names = tuple(sorted(tables))
        tables_built = " ".join(names) or "all"
        log.info("tables are built again", sink=self.name, because=why, tables=tables_built, meanwhile=readers)
        rebuild_request = RebuildRecord(
            sink=self.name,
            request=secrets.token_hex(8),
            action="rebuild",
            status="running",
            keeps_old=False,
            tables=names,
            message=why,
            asked_us=time.time_ns() // 1000,
        )
        connections.progress.send(rebuild_request)
        connections.control.rebuilds[self.name] = rebuild_request
        self._requests.add(rebuild_request.request)

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
            log.info("mapping changed", sink=self.name, tables=" ".join(map(str, reshaped)))
        return reshaped

    def _replace(self, rebuild: Rebuild, sync: SinkSync | None, connections: PipelineConnections) -> None:
        """Lets the new generation serve. The former generation is first recorded as kept, so that readers who wait for
        an LSN get no answer until the new one has published as serving: whichever of both generations they then read
        shows the LSN that they were promised.
        """
        if sync is not None:
            sync.housekeeper.work()
        if self._generation is not None:
            connections.control.read()
            # A store that was restored from an older copy may have lost generations; they answer nobody from now on,
            # not even between these records: the newest, of the generation that readers see, is the last.
            own = [one for one in connections.control.sinks.values() if (one.sink, one.role) == (self.name, "serving")]
            for record in sorted(own, key=lambda one: (one.job, one.generation)):
                connections.progress.publish(record.model_copy(update={"role": "kept"}))
            if sync is not None and not rebuild.reaches(sync.state.applied, SWAP_S_MAX):
                raise SinkError(
                    f"{self.name}: the new generation did not catch up in {SWAP_S_MAX:.0f} s, while nothing was "
                    "written to the former one",
                    "nothing to do: readers keep the former generation, and the rebuild continues",
                )
        rebuild.complete()
        self._generation = None  # the next attempt takes that which the store has now

    def _end(self, query: StreamingQuery, sync: SinkSync) -> None:
        if self._stop.is_set() and self._rebuild is not None:
            self._rebuild.stop()
        super()._end(query, sync)


def _now_us() -> int:
    return time.time_ns() // 1000

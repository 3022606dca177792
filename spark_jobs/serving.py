"""The generation of a sink that readers see, and its replacement by another one."""

import secrets
import time
from contextlib import ExitStack, closing

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.topics import DELETES_KEPT_S
from monitoring.job_records import RebuildRecord
from sinks.errors import RefusedError, SinkError
from spark_jobs.applied import Applied, AppliedPosition, covers
from spark_jobs.building import Builder
from spark_jobs.checkpoint import next_generation
from spark_jobs.rebuild import Rebuild, Told
from spark_jobs.reshaping import reshaped_tables
from spark_jobs.sync import SinkSync
from spark_jobs.worker import WATCH_S, Link, OpenSink, SinkWorker

log = structlog.get_logger(__name__)

SWAP_S_MAX = 60.0  # until the new generation shows what the former one showed last


class ServingWorker(SinkWorker):
    """Keeps the serving generation up to date. A generation that was requested with `cdc rebuild`, or that a changed
    mapping requires, is built beside it, and replaces it when it has caught up.
    """

    _rebuild: Rebuild | None = None
    _generation: int | None = None  # that this job filled or continued, or that readers see while another is built

    def _work(self, stack: ExitStack, link: Link) -> None:
        opened = self._open_sink(None)
        stack.enter_context(closing(opened))
        self._rebuild = rebuild = self._rebuild_of(opened, link)
        if rebuild is not None:
            stack.enter_context(closing(rebuild))
        begun = self._begin(opened, link)
        self._close_other_letters(opened, link)
        sync = None if begun is None else begun[0]
        if begun is not None:
            stack.enter_context(self._maintained(opened))
            self._keep_in_step(*begun, is_over=lambda: rebuild is not None and self._follow(rebuild, opened, link))
        elif rebuild is not None:
            self._report("rebuilding")
            while not self._stop.is_set() and not self._follow(rebuild, opened, link):
                if rebuild.refusal is not None:
                    raise rebuild.refusal
                self._stop.wait(WATCH_S)
                link.control.read()
        if rebuild is not None and rebuild.is_ready and not self._stop.is_set():
            self._replace(rebuild, sync, link)

    def _follow(self, rebuild: Rebuild, opened: OpenSink, link: Link) -> bool:
        ended = rebuild.ended
        is_ready = rebuild.follow(link.control)
        if rebuild.ended != ended:
            self._close_other_letters(opened, link)
        return is_ready

    def _close_other_letters(self, opened: OpenSink, link: Link) -> None:
        """Closes the dead letters of generations that the store does not hold any more."""
        wish = link.control.rebuilds.get(self.name)
        held = {self._generation, wish.generation if wish is not None and wish.is_open else None}
        held |= set(opened.slots.others().values()) if opened.slots is not None else set()
        with closing(self._open_letters(self._generation or 0)) as letters:
            letters.close_others([generation for generation in held if generation is not None])

    def _rebuild_of(self, opened: OpenSink, link: Link) -> Rebuild | None:
        if opened.slots is None:
            return None

        def builder(target: tuple[str, int], told: Told, is_rollback: bool) -> Builder:
            name, config = self.name, self._config
            return Builder(name, config, self._spark, self._open_sink, target, told, is_rollback=is_rollback)

        def publish(record: RebuildRecord) -> None:
            link.writer.send(record)

        return Rebuild(self.name, opened.slots, publish, builder)

    def _begin(self, opened: OpenSink, link: Link) -> tuple[SinkSync, int] | None:
        """Decides the generation, and prepares the store for it. Returns None if the serving one has another shape than
        configured, and another one is built beside it.
        """
        control, slots = link.control, opened.slots
        marker = opened.sink.generation()
        if marker is None and slots is not None and not slots.in_place:
            held = slots.generation(opened.slot)
            if held is not None and SinkRecord.key_of(self.name, held) in control.sinks:
                self._want(link, "tables are gone, or their shapes have changed")
                self._generation = held
                self._keep_checkpoints(held, link)
                return None
        last = control.sinks.get(SinkRecord.key_of(self.name, marker)) if marker is not None else None
        reshaped = self._reshaped(link, last)
        if last is None or self._lacks_tables(last) or (slots is None and (reshaped or self._is_too_old(last, link))):
            generation = self._begin_again(opened, link, marker, reshaped)
            position = AppliedPosition()
        else:
            if self._is_too_old(last, link):
                self._want(link, "it was not updated for half the time for which topics keep deletes")
            if reshaped and slots is not None:
                self._want(link, "its mapping has changed")
                if not slots.in_place:
                    self._generation = last.generation
                    self._keep_checkpoints(last.generation, link)
                    return None
            generation = last.generation
            applied = Applied(last.epoch, last.applied_lsn, last.commit_ts_us)
            position = AppliedPosition(offsets=last.end_offsets, sweeps=last.sweeps, applied=applied)
        self._generation = generation
        self._keep_checkpoints(generation, link)
        sync = self._begun(opened, link, generation, position)
        is_new = last is None or last.generation != generation
        log.info("sink starts", sink=self.name, generation=generation, new=is_new, tables=len(link.news.lineages))
        return sync, generation

    @staticmethod
    def _is_too_old(last: SinkRecord, link: Link) -> bool:
        """Returns whether deletes that the store has not applied may soon be removed from the topics."""
        silent_s = time.time() - last.applied_ts_us / 1_000_000
        published = link.news.progress[-1].end_offsets if link.news.progress else {}
        held = {topic: ends for topic, ends in published.items() if topic in last.end_offsets}
        return silent_s > DELETES_KEPT_S / 2 and not covers(last.end_offsets, held)

    def _begin_again(self, opened: OpenSink, link: Link, marker: int | None, reshaped: list[TableId]) -> int:
        """Begins a new generation in place of the serving one."""
        published = [record.generation for record in link.control.sinks.values() if record.sink == self.name]
        generation = next_generation(marker, published)
        opened.sink.begin_generation(generation)
        for table in reshaped:
            opened.sink.discard(table)
        return generation

    def _keep_checkpoints(self, generation: int, link: Link) -> None:
        wish = link.control.rebuilds.get(self.name)
        self._checkpoints.keep_only({generation} | ({wish.generation} if wish is not None and wish.is_open else set()))

    def _want(self, link: Link, why: str) -> None:
        """Requests a rebuild that no user has requested, unless one is in progress."""
        wish = link.control.rebuilds.get(self.name)
        if wish is None or not wish.is_open or wish.action != "rebuild":
            log.info("the store is built again beside the serving one", sink=self.name, because=why)
            wish = RebuildRecord(
                sink=self.name,
                request=secrets.token_hex(8),
                action="rebuild",
                status="running",
                keeps_old=False,
                message=why,
                asked_us=time.time_ns() // 1000,
            )
            link.writer.send(wish)
            link.control.rebuilds[self.name] = wish

    def _reshaped(self, link: Link, serving: SinkRecord | None) -> list[TableId]:
        """Returns the tables whose rows the store holds in another shape than the mapping's."""
        published = [record for record in link.control.sinks.values() if record.sink == self.name]
        last = serving or newest(published, self.name)
        reshaped = reshaped_tables(self._section, link.control.lineages.values(), last)
        self._mappings = dict(last.mappings) if last is not None else {}
        if reshaped and last is not None:
            if self._generation is not None and last.generation != self._generation:
                raise RefusedError(
                    f"{self.name}: another job fills the store with a different mapping (generation {last.generation})",
                    "a sink must have only one configuration: stop one of the two jobs",
                )
            log.info("mapping changed: the store is filled again", sink=self.name, tables=" ".join(map(str, reshaped)))
        return reshaped

    def _replace(self, rebuild: Rebuild, sync: SinkSync | None, link: Link) -> None:
        """Lets the new generation serve. The former generation is first recorded as kept, so that readers who wait for
        an LSN get no answer until the new one has published as serving: whichever of both generations they then read
        shows the LSN that they were promised.
        """
        if sync is not None:
            sync.tend()
        if self._generation is not None:
            link.control.read()
            last = link.control.sinks[SinkRecord.key_of(self.name, self._generation)]
            link.writer.publish(last.model_copy(update={"role": "kept"}))
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

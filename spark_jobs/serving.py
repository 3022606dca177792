"""The generation of a sink that readers see, and its replacement by another one."""

import secrets
import time
from collections.abc import Collection
from contextlib import ExitStack, closing

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import RefusedError, SinkError
from spark_jobs.building import Builder
from spark_jobs.generations import next_generation, reshaped_tables
from spark_jobs.rebuild import Rebuild, Told
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
    owing,
    read_note,
    still_disowned,
    why_filled_again,
)
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
                if rebuild.is_idle:
                    raise SinkError(
                        f"{self.name}: the rebuild was cancelled, but the store can't be continued without one",
                        "nothing to do: it begins again; restore the sink's former configuration to do without it",
                    )
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
        """Decides the generation, and prepares the store for it. Returns None after a request to stop, or if another
        generation must be built beside the one that readers see, which is not written any more.
        """
        slots, sink = opened.slots, opened.sink
        marker, noted = sink.generation(), read_note(sink.noted())
        if marker is not None and link.published is None and not self._wait_for_history(link):
            return None
        last = continued(marker, noted, link.history)
        held = marker if marker is not None or slots is None else slots.generation(opened.slot)
        reshaped = self._reshaped(link, last)
        included = [] if last is None else included_again(last, self._section.holds)
        if last is None:
            reason = why_filled_again(marker, held, noted, link.history)
        else:
            reason = RESHAPED if reshaped else INCLUDED if included else ""
        if reason and held is not None and slots is not None and not slots.in_place:
            self._want(link, reason)
            self._generation = held
            self._keep_checkpoints(held, link)
            self._publish_held(held, last, link)
            return None
        is_old = last is not None and is_too_old(last, link.published, _now_us())
        if last is None or included or (slots is None and (reshaped or is_old)):
            start = self._begin_again(opened, link, noted, reshaped, included)
        else:
            start = owing(last, link.control.lineages) if is_old else last
            self._log_lost_writes(last, link)
            is_old = is_old or must_be_built_again(last)  # and the request for it was cancelled, or has failed
            if is_old or reshaped:
                self._want(link, TOO_OLD if is_old else RESHAPED)
        self._generation = start.generation
        self._keep_checkpoints(start.generation, link)
        sync = self._begun(opened, link, start)
        log.info("sink starts", sink=self.name, generation=start.generation, new=start.generation != marker)
        return sync, start.generation

    def _wait_for_history(self, link: Link) -> bool:
        """Waits until capture has published a position: before that, it is not known whether the store was filled from
        these topics. Returns False after a request to stop."""
        log.info("waiting for capture to publish its position", sink=self.name)
        while link.published is None:
            if self._stop.wait(WATCH_S):
                return False
            link.add(link.control.read())
        return True

    def _log_lost_writes(self, last: SinkRecord, link: Link) -> None:
        published = link.control.sinks.get(last.record_key)
        if published is not None and has_lost_writes(last, published):
            log.warning(
                "the store has lost its last writes, and is continued from where it is",
                sink=self.name,
                published=format_lsn(Lsn(published.applied_lsn)),
                held=format_lsn(Lsn(last.applied_lsn)),
            )

    def _publish_held(self, held: int, noted: SinkRecord | None, link: Link) -> None:
        """Publishes what the generation shows that readers see until another one is built. The store may have lost
        writes, or be an older copy, since its position was published: a waiter must not be answered by that."""
        published = newest(link.control.sinks.values(), self.name)
        if published is not None:  # else nobody is promised anything
            nothing = {"generation": held, "epoch": 0, "applied_lsn": 0, "commit_ts_us": 0}
            shown = noted or published.model_copy(update=nothing)
            job = self._next_job(link, published)
            link.writer.publish(shown.model_copy(update={"role": "serving", "job": job}))

    def _begin_again(
        self,
        opened: OpenSink,
        link: Link,
        noted: SinkRecord | None,
        reshaped: Collection[TableId],
        included: Collection[TableId],
    ) -> SinkRecord:
        """Begins a new generation in place of the serving one. `included`: tables that were excluded. Returns its
        position."""
        sink, marker = opened.sink, opened.sink.generation()
        numbers = [record.generation for record in link.control.sinks.values() if record.sink == self.name]
        generation = next_generation(marker, [*numbers, *([] if noted is None else [noted.generation])])
        foreign = is_foreign(marker, noted, link.history, _now_us())
        known = sorted(link.control.lineages)
        tables = known if foreign else sorted({*included, *still_disowned(noted, known)})
        disowned = [table for table in tables if table not in reshaped]
        start = first_position(self.name, generation, link.history, disowned, _now_us())
        start = start.model_copy(update={"job": self._next_job(link, noted)})
        # Before rows go: from now on no waiter is answered by the former generation's position.
        link.writer.publish(self._complete(link.control, start))
        sink.begin_generation(generation)
        for table in reshaped:
            sink.discard(table)
        for table in disowned:
            sink.disown(table)
        sink.note(start.encode().decode(), None)
        return start

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
            # A store that was restored from an older copy may have lost generations; they answer nobody from now on,
            # not even between these records: the newest, of the generation that readers see, is the last.
            own = [one for one in link.control.sinks.values() if (one.sink, one.role) == (self.name, "serving")]
            for record in sorted(own, key=lambda one: (one.job, one.generation)):
                link.writer.publish(record.model_copy(update={"role": "kept"}))
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

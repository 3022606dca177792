"""Repair of differences: capture publishes the rows again, as they are in the source, and deletes those that do not
exist there.

A store only accepts versions that are greater than the version held. So a row with a version that capture has never
published is first removed from the store, with its version, and so is a row that is stored twice. Detection and removal
use the same rule: only versions above the highest one that was published when the store was read.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from cdc.config.config_file import Config
from cdc.model.control import NEXT_AFTER_OTHERS, REPUBLISHED_MAX, SignalRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from watershed.client.signal_sender import await_answer, send_signal
from watershed.verify.model import ORPHANED_LOOKUP, DriftKind, RowDifference, TableResult
from watershed.verify.pipeline_reader import PipelineReader
from watershed.verify.settling import Side, settle, with_stale_rows
from watershed.verify.source_rows import VerifiedTable
from watershed.verify.suspects import Suspects
from watershed.verify.verifier import ProgressCallback

ANSWER_S_MAX: Final = 30.0
KEYS_BYTES_MAX: Final = 128 * 1024  # of one signal
PUBLISHED_S_MAX: Final = 300.0  # capture waits until running transactions have ended
BUSY_S: Final = 1.0
ATTEMPTS_MAX: Final = 30


class Repair:
    """Implements watershed.verify.verifier.RepairCallback."""

    def __init__(self, config: Config, pipeline: PipelineReader, report_progress: ProgressCallback) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._pipeline = pipeline
        self._report_progress = report_progress

    def __call__(self, source: VerifiedTable, found: Sequence[tuple[Side, TableResult, list[RowDifference]]]) -> None:
        table = source.schema.table
        for side, result, differences in found:
            if result.orphans:
                side.contents.remove_lookups(table, result.orphans)
            foreign = [
                (side.expected.store_key(one.key), one.version)
                for one in differences
                if one.is_foreign and one.version is not None
            ]
            if foreign:
                self._report_progress(side.sink, table, "removing", 0, len(foreign))
                side.contents.remove(side.expected.schema.table, foreign)
        keys = sorted({one.key for _, _, differences in found for one in differences})
        done = 0
        for page in _pages(keys):
            self._publish(table, page)
            done += len(page)
            self._report_progress("", table, "done" if done == len(keys) else "publishing", done, len(keys))
        for side, result, differences in found:
            self._compare_again(side, result, differences)

    def _publish(self, table: TableId, keys: Sequence[bytes]) -> None:
        """Requests the rows, and returns when capture has published them."""
        names = tuple(key.decode() for key in keys)
        for _ in range(ATTEMPTS_MAX):
            record = SignalRecord(
                action="republish", tables=(str(table),), keys=names, requested_us=time.time_ns() // 1000
            )
            identity = send_signal(self._config.kafka, self._topics, record)
            answer = await_answer(self._config.kafka, self._topics, identity, ANSWER_S_MAX)
            if answer.is_accepted:
                break
            if answer.next != NEXT_AFTER_OTHERS:
                raise WatershedError(f"capture refuses to publish rows again: {answer.message}", answer.next)
            time.sleep(BUSY_S)
        else:
            raise WatershedError(f"capture does not publish rows again: {answer.message}", answer.next)
        deadline = time.monotonic() + PUBLISHED_S_MAX
        while self._pipeline.has_requested_keys(table):
            if time.monotonic() > deadline:
                raise WatershedError(
                    f"capture has not published rows of {table} again in {PUBLISHED_S_MAX:g} s",
                    "capture publishes them when open transactions have ended; then run cdc verify",
                )

    def _compare_again(self, side: Side, result: TableResult, differences: Sequence[RowDifference]) -> None:
        """Compares the rows again, and sets the result to the remaining differences."""
        left: list[RowDifference] = []
        with Suspects() as suspects:
            for one in differences:
                suspects.add(one.key)
            for found in settle(side, self._pipeline, suspects):
                left += found
            undecided = len(suspects)
        left = with_stale_rows(self._config.kafka, side.source.schema, left)
        reasons = {one.key: one.rejected for one in differences}
        orphans, result.orphans = result.orphans, []
        kept = (
            dict.fromkeys(name for name in side.contents.orphaned_lookups(result.table) if name in orphans)
            if orphans
            else {}
        )
        result.counts[DriftKind.LOOKUP] -= len(orphans)
        result.differences = [one for one in result.differences if one.columns != (ORPHANED_LOOKUP,)]
        result.add_orphaned_lookups(kept)
        unrelated = [one for one in result.differences if one.key not in reasons]
        result.repaired = len(differences) - len(left) - undecided + len(orphans) - len(kept)
        result.undecided += undecided
        result.differences = unrelated
        for one in differences:
            result.counts[one.kind] -= 1
        for one in left:
            rejected = reasons.get(one.key, "")
            result.add(RowDifference(one.key, one.kind, one.columns, one.version, one.is_foreign, rejected))
        self._report_progress(side.sink, result.table, "done", result.store_rows, result.store_rows)


def _pages(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    page: list[bytes] = []
    size = 0
    for key in keys:
        if page and (len(page) == REPUBLISHED_MAX or size + len(key) > KEYS_BYTES_MAX):
            yield page
            page, size = [], 0
        page.append(key)
        size += len(key)
    if page:
        yield page

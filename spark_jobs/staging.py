"""The warehouse's rounds: tasks write rows as files, the driver merges the files into the tables."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from sinks.lineage import Lineage
from sinks.warehouse.staging import Stager, delete_staged
from spark_jobs.tasks import Catalog, Job

if TYPE_CHECKING:  # each worker process reads this module, and has no use for what takes seconds to load
    from sinks.warehouse.sink import WarehouseSink
    from spark_jobs.applied import Offsets
    from spark_jobs.rounds import RoundReport, Rounds, Take

log = structlog.get_logger(__name__)


def open_staging(job: Job, catalog: Catalog) -> Stager:
    """Nothing is connected to: the files are written when the task has read its records."""
    return Stager(job.staging, [lineage.newest for lineage in catalog.lineages.values()])


class MergingRounds:
    """Rounds whose tasks stage rows, which the driver then merges into the warehouse's tables."""

    def __init__(self, rounds: "Rounds", sink: "WarehouseSink") -> None:
        self._rounds = rounds
        self._sink = sink

    def learn(self, lineages: Mapping[str, Lineage]) -> None:
        self._rounds.learn(lineages)

    def ends(self) -> "Offsets":
        return self._rounds.ends()

    def run(self, starts: "Offsets", ends: "Offsets", take: "Take") -> "RoundReport":
        begun = time.monotonic()
        report = self._rounds.run(starts, ends, take)
        if report.staged:
            staged = time.monotonic()
            try:
                report.written = self._sink.take(report.staged)
            finally:
                delete_staged(part.path for part in report.staged)
            report.stale = report.records - report.written
            log.debug(
                "merged",
                tables=len({part.table for part in report.staged}),
                rows=sum(part.row_count for part in report.staged),
                staging_s=round(staged - begun, 2),
                merging_s=round(time.monotonic() - staged, 2),
            )
        return report

"""The history of comparisons: what a run adds to a sink's record, and when the next scheduled one is due. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from cdc.model.comparisons import RUNS_MAX, ComparisonRecord, RunRecord
from watershed.verify.model import TableResult

RETRY_S: Final = 600.0  # after a scheduled run that could not compare anything


def run_of(run: RunRecord, results: Sequence[TableResult]) -> RunRecord:
    """The run with what it found in one sink's tables."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update({kind.value: count for kind, count in result.counts.items() if count > 0})
    return run.model_copy(
        update={
            "tables": sum(1 for result in results if not result.why_not),
            "rows": sum(result.source_rows for result in results),
            "drift": dict(counts),
            "undecided": sum(result.undecided for result in results),
            "repaired": sum(result.repaired for result in results),
            "not_compared": {str(result.table): result.why_not for result in results if result.why_not},
        }
    )


def with_run(
    record: ComparisonRecord | None, sink: str, run: RunRecord, results: Sequence[TableResult]
) -> ComparisonRecord:
    """The sink's record after this run. A table that was not compared keeps its drift; so does one of which a sample
    showed less."""
    runs = () if record is None else record.runs
    drift = {} if record is None else dict(record.drift)
    for result in results:
        name = str(result.table)
        if run.is_sample:
            drift[name] = max(drift.get(name, 0), result.drift)
        elif result.drift or not result.why_not:
            drift[name] = result.drift
    known = {name: count for name, count in drift.items() if count}
    return ComparisonRecord(sink=sink, runs=(run, *runs)[:RUNS_MAX], drift=known)


def due_us(record: ComparisonRecord | None, every_s: float) -> int:
    """The time, in µs since 1970, from which on a scheduled run is due; 0: now."""
    last = next((run for run in record.runs if run.is_scheduled), None) if record is not None else None
    if last is None:
        return 0
    pause_s = every_s if last.tables else min(every_s, RETRY_S)
    return last.begun_us + int(pause_s * 1_000_000)

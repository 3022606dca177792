"""Statistics of the raw data: which runs count, whether the control holds, and the figures that may be quoted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.bench.public.raw_data import RawData, Run

WATERSHED: Final = "watershed"
CONTROL: Final = "control"  # the same as WATERSHED, measured beside it
DEFAULTS: Final = "defaults"  # of WATERSHED, where that is tuned
DEBEZIUM: Final = "debezium"
READER: Final = "pg_recvlogical"
PRODUCER: Final = "producer"
COPY: Final = "copy"

CONTROL_DIFFERENCE_MAX: Final = 0.10
FOREIGN_SHARE_MAX: Final = 0.05  # of the machine, used by other programs during a run
RUNS_MIN: Final = 3  # that count, of each arm
# The figure by which the control is judged, and whose ratio is reported: of a part, or of one of its cases.
MAIN: Final[Mapping[str, str]] = {
    "catchup": "rows_per_s",
    "latency": "p50_ms",
    "snapshot": "rows_per_s",
    "restart": "recovery_s",
    "stores": "rows_per_s",
    "stores.machine": "pg_recvlogical_rows_per_s",
    "stores.together_300": "cache_applied_p50_ms",
    "views": "readable_ms_p50",
}


def main_figure(part: str, case: str) -> str:
    return MAIN.get(f"{part}.{case}", MAIN[part])


@dataclass(frozen=True, slots=True)
class Result:
    """A case of a part. `medians`: by arm, of the runs that count. `objection`: why no figure is quoted; "" if all
    may be."""

    part: str
    case: str
    medians: Mapping[str, Mapping[str, float]]
    spreads: Mapping[str, tuple[float, float]]  # lowest and highest of the main figure
    counts: Mapping[str, tuple[int, int]]  # runs that count, and all
    difference: float | None  # of the control
    objection: str

    def value(self, arm: str, figure: str) -> float | None:
        return self.medians.get(arm, {}).get(figure)


def counts(run: Run) -> bool:
    """Returns whether a run is used: other programs had little of the machine."""
    return (run.figures.get("foreign_share") or 0.0) <= FOREIGN_SHARE_MAX


def medians_of(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the median of each figure over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    values = {name: [value for run in runs if (value := run.figures.get(name)) is not None] for name in names}
    return {name: median(found) for name, found in values.items() if found}


def control_difference(one: float, other: float) -> float:
    """Returns by which share of their mean two medians of the same thing differ."""
    return abs(one - other) / ((one + other) / 2) if one + other else 0.0


def result_of(part: str, case: str, runs: Sequence[Run], wanted: int) -> Result:
    """`wanted`: the number of rounds that the environment promises."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    of = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    kept = {arm: [run for run in of[arm] if counts(run)] for arm in arms}
    medians = {arm: medians_of(kept[arm]) for arm in arms}
    main = main_figure(part, case)
    values = {arm: [v for run in kept[arm] if (v := run.figures.get(main)) is not None] for arm in arms}
    ours, again = medians.get(WATERSHED, {}).get(main), medians.get(CONTROL, {}).get(main)
    difference = control_difference(ours, again) if ours is not None and again is not None else None
    few = [arm for arm in arms if len(kept[arm]) < min(RUNS_MIN, wanted)]
    incomplete = [arm for arm in arms if len(of[arm]) < wanted]
    if incomplete:
        objection = f"{wanted} runs were to be made, {incomplete[0]} has {len(of[incomplete[0]])}"
    elif few:
        objection = (
            f"other programs used more than {FOREIGN_SHARE_MAX:.0%} of the machine in "
            f"{len(of[few[0]]) - len(kept[few[0]])} of {len(of[few[0]])} runs of {few[0]}"
        )
    elif difference is None:
        objection = "there is no control"
    elif difference > CONTROL_DIFFERENCE_MAX:
        objection = f"the control differs by {difference:.0%}, {CONTROL_DIFFERENCE_MAX:.0%} at most"
    else:
        objection = ""
    return Result(
        part,
        case,
        medians,
        {arm: (min(found), max(found)) for arm, found in values.items() if found},
        {arm: (len(kept[arm]), len(of[arm])) for arm in arms},
        difference,
        objection,
    )


def results(data: Mapping[str, RawData]) -> list[Result]:
    """Returns the results of all parts, in the order of the raw data."""
    return [
        result_of(part, case, [run for run in raw.runs if run.case == case], int(raw.environment["rounds"]))
        for part, raw in data.items()
        for case in dict.fromkeys(run.case for run in raw.runs)
    ]


def figures(found: Sequence[Result]) -> dict[str, float]:
    """Returns the figures that may be quoted: `<part>.<case>.<arm>.<figure>`, and for each main figure
    `<part>.<case>.ratio` (how much better than Debezium) and `<part>.<case>.share` (of what the limit reaches).
    """
    quotable: dict[str, float] = {}
    for result in found:
        if result.objection:
            continue
        name = f"{result.part}.{result.case}"
        for arm, values in result.medians.items():
            quotable |= {f"{name}.{arm}.{figure}": value for figure, value in values.items()}
        if (ratio := ratio_of(result)) is not None:
            quotable[f"{name}.ratio"] = ratio
        if (share := share_of(result)) is not None:
            quotable[f"{name}.share"] = share
    return quotable


def ratio_of(result: Result) -> float | None:
    """Returns how many times better than Debezium the main figure is: more rows/s, or fewer seconds."""
    main = main_figure(result.part, result.case)
    ours, theirs = result.value(WATERSHED, main), result.value(DEBEZIUM, main)
    if not ours or not theirs:
        return None
    return ours / theirs if main.endswith("_per_s") else theirs / ours


def share_of(result: Result) -> float | None:
    """Returns the main figure in percent of what the limit reaches."""
    main = main_figure(result.part, result.case)
    ours = result.value(WATERSHED, main)
    limit = result.value(READER, main) or result.value(COPY, main)
    return 100 * ours / limit if ours and limit else None

"""Makes the page docs/benchmarks/index.md, with its charts, from the raw data beside it.

python -m tests.bench.public.report                  renders the page again
python -m tests.bench.public.report --from FOLDER    first takes the raw data of a run from there
python -m tests.bench.public.report --figures        prints the figures that may be quoted, with their names
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

from cdc.model.errors import StackError, WatershedError
from tests.bench.public.bench import FULL
from tests.bench.public.charts import Bars, chart
from tests.bench.public.evaluation import (
    CONTROL,
    CONTROL_DIFFERENCE_MAX,
    COPY,
    DEBEZIUM,
    DEFAULTS,
    FOREIGN_SHARE_MAX,
    MAIN,
    PRODUCER,
    READER,
    WATERSHED,
    Result,
    counts,
    figures,
    ratio_of,
    results,
    share_of,
)
from tests.bench.public.raw_data import RawData, read_all
from tests.bench.public.workloads import BACKLOGS
from tests.support.config_files import replace_text

FOLDER: Final = Path(__file__).parents[3] / "docs" / "benchmarks"
ORDER: Final = ("catchup", "latency", "snapshot", "restart", "stores", "views")
TITLES: Final = {
    "catchup": "Catching up with a backlog",
    "latency": "Latency",
    "snapshot": "Existing rows",
    "restart": "After kill -9",
    "stores": "Stores",
    "views": "Views",
}
# The cases of the parts that compare, and their titles.
CASES: Final[Mapping[str, Mapping[str, str]]] = {
    "catchup": {one.name: one.title for one in BACKLOGS},
    "latency": {"100_per_s": "100 commits/s", "1000_per_s": "1,000 commits/s", "3000_per_s": "3,000 commits/s"},
    "snapshot": {"initial": "at the first start", "beside_stream": "beside 300 changes/s of another table"},
    "restart": {"kill_9": "500 commits/s"},
}
ARMS: Final = {
    WATERSHED: "Watershed",
    DEBEZIUM: "Debezium",
    CONTROL: "Watershed, control",
    DEFAULTS: "Watershed, its defaults",
    READER: "pg_recvlogical",
    PRODUCER: "plain producer",
    COPY: "COPY to a file",
}
# The figures of a part, and the heads of their columns.
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "catchup": {
        "rows_per_s": "rows/s",
        "rows_per_s_second_half": "second half, rows/s",
        "start_to_first_s": "start to first row, s",
        "start_cpu_s": "processor s of the start",
        "cpu_s_per_million": "processor s per million rows",
        "peak_pss_mb": "memory (PSS), MB",
        "surplus_records": "records too many",
    },
    "latency": {
        "p50_ms": "p50, ms",
        "p95_ms": "p95, ms",
        "p99_ms": "p99, ms",
        "max_ms": "max, ms",
        "commits_per_s": "commits/s",
        "cpu_s_per_million": "processor s per million rows",
        "peak_pss_mb": "memory (PSS), MB",
        "retained_log_mb": "log retained, MB",
    },
    "snapshot": {
        "rows_per_s": "rows/s",
        "rows_per_s_second_half": "second half, rows/s",
        "start_to_first_s": "to the first row, s",
        "start_cpu_s": "processor s until then",
        "cpu_s_per_million": "processor s per million rows",
        "peak_pss_mb": "memory (PSS), MB",
        "stream_p50_ms": "stream meanwhile, p50, ms",
        "stream_p99_ms": "p99, ms",
        "retained_log_mb": "log retained, MB",
    },
    "restart": {
        "recovery_s": "kill to first new row, s",
        "duplicates": "duplicates",
        "lost": "lost",
        "readable_before_kill": "readable before the kill",
    },
}
PAGE: Final = Path(__file__).with_name("page.md")
NONE_YET: Final = """
**No run has been published yet.** A run counts if no other program used the machine, so it is made on a quiet one.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, help="a folder of raw data, as `make bench` names it")
    parser.add_argument("--figures", action="store_true", help="print figures and names, and render nothing")
    given = parser.parse_args()
    try:
        if given.figures:
            for name, value in sorted(figures(results(published(FOLDER / "data"))).items()):
                print(f"{value:>14,.6g}  <!-- bench:{name} -->")
            return 0
        if given.source:
            take(given.source, FOLDER / "data")
        write(published(FOLDER / "data"), FOLDER)
    except WatershedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def write(data: Mapping[str, RawData], folder: Path) -> None:
    """Writes the page and its charts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rendered(data).items():
        replace_text(folder / name, text).chmod(0o644)


def take(source: Path, target: Path) -> None:
    """Copies raw data. Raises StackError for a part of which no figure may be quoted, and for one of no part."""
    data = read_all(source)
    if not data:
        raise StackError(f"{source} has no raw data", "name the folder that `make bench` printed at its end")
    for part, raw in data.items():
        if raw.environment["size"]["rounds"] < FULL.rounds:
            raise StackError(f"{part} is of a quick run", "measure it without QUICK=1")
        if str(raw.environment["commit"]).endswith("+"):
            raise StackError(
                f"{part} was measured with changes that are not committed", "commit them, and measure again"
            )
        objections = [result.objection for result in results({part: raw})]
        if all(objections):
            raise StackError(f"no figure of {part} may be quoted: {objections[0]}", "measure it on a quiet machine")
    for part, raw in data.items():
        raw.write(target / f"{part}.jsonl")
        (target / f"{part}.jsonl").chmod(0o644)


def published(folder: Path) -> dict[str, RawData]:
    """Returns the raw data of a folder, in the order of the report."""
    data = read_all(folder)
    unknown = sorted(data.keys() - set(ORDER))
    if unknown:
        raise StackError(f"{folder / unknown[0]}.jsonl is of no part of the benchmark", f"parts are {', '.join(ORDER)}")
    return {part: data[part] for part in ORDER if part in data}


def rendered(data: Mapping[str, RawData]) -> dict[str, str]:
    """Returns the files of the report by name: the page, and an SVG for each part that has a chart."""
    found = results(data)
    charts = {f"{part}.svg": text for part in data if (text := picture(part, [r for r in found if r.part == part]))}
    sections = [
        section(part, raw, [r for r in found if r.part == part], has_chart=f"{part}.svg" in charts)
        for part, raw in data.items()
    ]
    page = Template(PAGE.read_text(encoding="utf-8")).substitute(
        results="".join(sections or [NONE_YET]),
        appendix="\n".join(_appendix(data, found)) if data else "",
        control_max=f"{CONTROL_DIFFERENCE_MAX:.0%}",
        foreign_max=f"{FOREIGN_SHARE_MAX:.0%}",
    )
    return {"index.md": page, **charts}


def section(part: str, raw: RawData, found: Sequence[Result], *, has_chart: bool) -> str:
    lines = [f"\n## {TITLES[part]}\n"]
    if has_chart:
        lines.append(f"![{TITLES[part]}]({part}.svg)\n")
    if part in COLUMNS:
        lines += _table(part, COLUMNS[part], found)
    else:
        for result in found:
            lines += [f"\n**{result.case}**" + (f" ({_not_quoted(result)})" if result.objection else ""), ""]
            lines += ["| figure | median | control |", "|---|---|---|"]
            lines += [
                f"| {name.replace('_', ' ')} | {shown(value)} | {shown(result.value(CONTROL, name))} |"
                for name, value in result.medians.get(WATERSHED, {}).items()
            ]
    lines.append(f"\n{_made(raw)} [Raw data](data/{part}.jsonl).\n")
    return "\n".join(lines)


def _table(part: str, columns: Mapping[str, str], found: Sequence[Result]) -> Iterator[str]:
    main = MAIN[part]
    used = {
        name: head
        for name, head in columns.items()
        if any(name in values for r in found for values in r.medians.values())
    }
    yield f"| | | {' | '.join(used.values())} | runs |"
    yield "|" + "---|" * (len(used) + 3)
    for result in found:
        title = title_of(result.part, result.case)
        notes = []
        if (ratio := ratio_of(result)) is not None:
            notes.append(
                f"**{ratio:.1f} times** Debezium"
                if main.endswith("_per_s")
                else f"Debezium takes {ratio:.1f} times as long"
            )
        if (share := share_of(result)) is not None:
            notes.append(f"{share:.0f} % of the limit")
        if result.difference is not None:
            notes.append(f"the control differs by {result.difference:.1%}")
        if result.objection:
            notes = [_not_quoted(result)]
        for number, (arm, (kept, made)) in enumerate(result.counts.items()):
            low, high = result.spreads.get(arm, (None, None))
            cells = [
                shown(result.value(arm, name))
                + (f" ({shown(low)}–{shown(high)})" if name == main and low is not None and made > 1 else "")
                for name in used
            ]
            first = f"{title}<br>{'; '.join(notes)}" if notes else title
            yield f"| {first if number == 0 else ''} | {ARMS[arm]} | {' | '.join(cells)} | {kept} of {made} |"


def title_of(part: str, case: str) -> str:
    return CASES.get(part, {}).get(case, case)


def unmeasured(data: Mapping[str, RawData]) -> Iterator[str]:
    """Yields the parts, and the cases of measured parts, of which there is no run."""
    for part in ORDER:
        if part not in data:
            yield TITLES[part]
            continue
        made = {run.case for run in data[part].runs}
        yield from (f"{TITLES[part]}: {title}" for case, title in CASES.get(part, {}).items() if case not in made)


def _not_quoted(result: Result) -> str:
    return f"*not quoted: {result.objection}*"


def picture(part: str, found: Sequence[Result]) -> str | None:
    """Returns a chart of the main figure of the cases that may be quoted; None if Debezium is in none."""
    main = MAIN[part]
    arms = [arm for arm in (WATERSHED, DEBEZIUM, READER, COPY) if any(r.value(arm, main) is not None for r in found)]
    if DEBEZIUM not in arms:
        return None
    head = COLUMNS[part][main]
    cases = [Bars(title_of(part, r.case), tuple(r.value(arm, main) for arm in arms)) for r in found if not r.objection]
    return chart(
        f"{TITLES[part]}: {head}", [ARMS[arm] for arm in arms], cases, decimals=0 if main == "rows_per_s" else 1
    )


def shown(value: float | None) -> str:
    """Returns three significant digits, or – for a figure that was not measured."""
    if value is None:
        return "–"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded == round(rounded) else f"{rounded:,g}"


def _made(raw: RawData) -> str:
    environment = raw.environment
    return f"Measured on {environment['date']} at commit {environment['commit']} by `{environment['command']}`."


def _appendix(data: Mapping[str, RawData], found: Sequence[Result]) -> Iterator[str]:
    if left_out := list(unmeasured(data)):
        yield "\n## Left out of this run\n"
        yield from (f"- {name}" for name in left_out)
    yield "\n## Thrown away, and not quoted\n"
    lines = [
        f"- {result.part}, {title_of(result.part, result.case)}: not quoted, because {result.objection}."
        for result in found
        if result.objection
    ]
    lines += [
        f"- {part}, {title_of(part, run.case)}, {ARMS[run.arm]}, round {run.round}: thrown away, because "
        f"other programs used {run.figures.get('foreign_share') or 0:.0%} of the machine."
        for part, raw in data.items()
        for run in raw.runs
        if not counts(run)
    ]
    yield from lines or ["Nothing."]
    yield "\n## Machine and versions\n"
    yield "| | | parts |\n|---|---|---|"
    facts: dict[tuple[str, str], list[str]] = {}
    for part, raw in data.items():
        for name, value in (*raw.environment["machine"].items(), *raw.environment["versions"].items()):
            facts.setdefault((name.replace("_", " "), str(value)), []).append(part)
    for (name, value), parts in facts.items():
        yield f"| {name} | {value} | {'all' if len(parts) == len(data) else ', '.join(parts)} |"
    yield "\n## Settings\n"
    for part, raw in data.items():
        yield f"{TITLES[part]}:\n\n```json\n{_json(raw.environment['settings'])}\n```\n"


def _json(settings: Any) -> str:
    return json.dumps(settings, indent=1)


if __name__ == "__main__":
    raise SystemExit(main())

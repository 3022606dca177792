"""Parts `stores` and `views`: benchmarks that measure Watershed alone, called twice: the second call is the control."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cdc.model.errors import StackError
from tests.bench.public.bench import Size
from tests.bench.public.evaluation import CONTROL, WATERSHED
from tests.bench.public.raw_data import RawData

ARMS: Final = (WATERSHED, CONTROL)
S_MAX: Final = 1800.0
# A rate needs a backlog of several steps. One step of the warehouse has some 200,000 rows, so a quick run
# measures the cache.
ROWS: Final = 500_000
CACHE_ROWS_MIN: Final = 60_000
ROOT: Final = Path(__file__).parents[3]
MODULES: Final = {"stores": "tests.bench.sinks", "views": "tests.bench.views"}


def arguments(part: str, size: Size) -> list[str]:
    """Returns those of the benchmark that measures a part."""
    if part == "views":
        return ["--parts", "documents", "--seconds", f"{2 * size.live_s:g}", "--json"]
    live = ["--seconds", f"{2 * size.live_s:g}", "--rates", "300", "--warm", f"{size.live_s:g}"]
    if size.rounds == 1:
        return ["--rows", str(CACHE_ROWS_MIN), *live, "--only", "cache", "--parts", "backlog", "freshness"]
    return ["--rows", str(ROWS), *live, "--parts", "backlog", "freshness", "together"]


def measure(part: str, size: Size, raw: RawData, console: Console) -> None:
    for arm in ARMS:
        if any(run.arm == arm for run in raw.runs):
            continue
        command = [sys.executable, "-m", MODULES[part], *arguments(part, size)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=S_MAX, check=False)
        if done.returncode:
            raise StackError(
                f"`{' '.join(command[1:])}` ended with exit code {done.returncode}", "see what it wrote above"
            )
        raw.add_all(arm, 1, cases_of(json.loads(done.stdout.splitlines()[-1])))
        console.print(f"{part}: {arm} is measured", highlight=False)


def cases_of(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the numbers of each part of a benchmark's result, nested names joined by `_`."""
    cases = {name: dict(_numbers("", values)) for name, values in found.items() if isinstance(values, Mapping)}
    return {name: values for name, values in cases.items() if values}


def _numbers(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, inner in value.items():
        whole = f"{prefix}{name}".replace(" ", "_")
        if isinstance(inner, Mapping):
            yield from _numbers(f"{whole}_", inner)
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            yield whole, float(inner)

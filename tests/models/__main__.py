"""Goes through the models: `python -m tests.models`, some seconds, or `--whole`, some hours.

The whole can be interrupted at any time, and `--minutes` does so: what is finished is kept in `--folder` with the
search that is running, and the next run goes on from there, as long as the code is the same. Exit code 0: ours holds
wherever it was tried, and every control was found wrong; 1: not so; 2: time was up before the end.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic

import structlog

from tests.models.chunks import Model
from tests.models.search import Search, shortest, wander
from tests.models.sizes import ALL_KEYS, ALL_RANGES, CONTROLS, SMALL, WHOLE
from tests.models.states import OURS, Size
from tests.simulation.snapshots.mutants import MUTANTS
from tests.simulation.snapshots.run import Parts, Run

SEEDS, SEEDS_WHOLE = 300, 20_000
SEEDS_FOR_A_CONTROL = 1_000
BATCH = 5_000
SAVE_EVERY_S = 600.0
FLOORS = {"ours": OURS, "the mark's": replace(OURS, floor="mark"), "too early": replace(OURS, floor="early")}


@dataclass(frozen=True, slots=True)
class Line:
    """Of the table. `count`: states gone through, or schedules."""

    what: str
    count: int
    seconds: float
    verdict: str
    is_right: bool
    code: str  # digest of what was judged


class Table:
    """What is finished, kept in a file and shown."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.lines: list[Line] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "lines.json").exists():
                known = [Line(**line) for line in json.loads((folder / "lines.json").read_text())]
                self.lines = [line for line in known if line.code in (MODEL, ENGINE)]
        for line in self.lines:
            _show(line)

    def has(self, what: str) -> bool:
        return any(line.what == what for line in self.lines)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        _show(line)
        if self.folder is not None:
            (self.folder / "lines.json").write_text(json.dumps([asdict(line) for line in self.lines], indent=1))


def _digest(*patterns: str) -> str:
    """Of the code that is judged: what was found of other code doesn't count."""
    digest = sha256()
    for pattern in patterns:
        for path in sorted(Path(__file__).parents[2].glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


MODEL = _digest("tests/models/chunks.py", "tests/models/states.py")
ENGINE = _digest(
    *(f"cdc/{folder}/*.py" for folder in ("model", "records", "pgoutput", "ports", "toast", "snapshots", "capture")),
    "tests/simulation/snapshots/*.py",
)


def _show(line: Line) -> None:
    mark = "" if line.is_right else "   <<< NOT AS IT SHOULD BE"
    print(f"{line.what:<96} {line.count:>12,} {line.seconds:>9,.1f} s  {line.verdict}{mark}", flush=True)


def described(size: Size) -> str:
    """In one line."""
    words = [f"{size.keys} keys × {size.transactions} transactions × {size.chunks} chunks × {size.crashes} crashes"]
    if size.forgets:
        words.append(f"{size.forgets} forgotten")
    if size.ranges:
        words.append("a range each")
    if size.writing:
        words.append("writing")
    default = next(field.default for field in fields(Size) if field.name == "ops")
    words.append("all operations" if size.ops == default else "+".join(size.ops))
    return ", ".join(words)


# ---- the parts


def go_through(size: Size, table: Table, is_up: Callable[[], bool]) -> bool:
    """Every state of this size. False when time was up."""
    what = described(size)
    if table.has(what):
        return True
    model = Model(size)
    search, before_s = Search.of(model), 0.0
    place = None if table.folder is None else table.folder / "running"
    if place is not None and (place / "what.json").exists():
        saved = json.loads((place / "what.json").read_text())
        if (saved["what"], saved["code"]) == (what, MODEL):
            search, before_s = Search.load(model, place), saved["seconds"]
            print(f"going on with {what} after {search.seen.count:,} states", flush=True)
    began = monotonic()
    while not search.is_over and not is_up():
        _run_for(search, SAVE_EVERY_S, is_up)
        if place is not None and not search.is_over:
            seconds = before_s + monotonic() - began
            _save(search, place, {"what": what, "code": MODEL, "seconds": seconds})
            _say_so_far(search, seconds)
    if not search.is_over:
        print(f"time is up in {what}: {search.seen.count:,} states so far, none wrong", flush=True)
        return False
    seconds = before_s + monotonic() - began
    verdict = f"holds in {search.ended:,} ends" if search.wrong is None else f"WRONG: {search.wrong}"
    table.add(Line(what, search.seen.count, seconds, verdict, search.wrong is None, MODEL))
    if search.wrong is not None:
        print(shortest(model, states_max=10_000_000), flush=True)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
    return True


def _run_for(search: Search, seconds: float, is_up: Callable[[], bool]) -> None:
    until = monotonic() + seconds
    search.run(lambda: not is_up() and monotonic() < until)


def _say_so_far(search: Search, seconds: float) -> None:
    peak_mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"  after {seconds:,.0f} s: {search.seen.count:,} states, {search.ended:,} ends, none wrong; "
        f"{len(search.stack):,} to go on from; {peak_mib:,.0f} MiB at most",
        flush=True,
    )


def _save(search: Search, place: Path, what: dict[str, object]) -> None:
    """A save that is interrupted leaves the one before it."""
    fresh = place.with_name("saving")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    search.save(fresh)
    (fresh / "what.json").write_text(json.dumps(what))
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)


def find_controls(table: Table) -> None:
    for control in CONTROLS:
        what = f"control: {control.name}"
        if table.has(what):
            continue
        began = monotonic()
        found = shortest(Model(control.size, control.rule))
        verdict = "NOT FOUND" if found is None else f"wrong after {len(found.steps)} steps: {found.what}"
        table.add(Line(what, 1, monotonic() - began, verdict, found is not None, MODEL))


@dataclass(frozen=True, slots=True)
class Trial:
    """What one seed after the other decides."""

    what: str
    code: str
    is_ours: bool
    wrong_in: Callable[[int], str | None]  # seed → what is wrong in its run


def trials() -> Iterator[Trial]:
    yield Trial("the engine itself", ENGINE, True, _failure)
    for name, parts in MUTANTS.items():
        yield Trial(f"an engine that {name}", ENGINE, False, partial(_failure, parts=parts))
    for size in (ALL_KEYS, ALL_RANGES):
        for name, rule in FLOORS.items():
            wrong_in = partial(_wrong_end, Model(size, rule, is_stepwise=True))
            yield Trial(f"{described(size)}, floor: {name}", MODEL, rule == OURS, wrong_in)


def try_seeds(trial: Trial, seeds: int, table: Table, is_up: Callable[[], bool]) -> bool:
    """In batches, each with its line. False when time was up."""
    if not trial.is_ours:
        seeds = min(seeds, SEEDS_FOR_A_CONTROL)
    for first in range(0, seeds, BATCH):
        last = min(first + BATCH, seeds) - 1
        what = f"{trial.what}, seeds {first} to {last}"
        if table.has(what):
            continue
        began = monotonic()
        wrong: list[str] = []
        for seed in range(first, last + 1):
            if is_up():
                return False
            if (found := trial.wrong_in(seed)) is not None:
                wrong.append(f"seed {seed}: {found}")
        verdict = f"{len(wrong)} wrong" + (f", first {wrong[0]}" if wrong else "")
        table.add(Line(what, last + 1 - first, monotonic() - began, verdict, bool(wrong) != trial.is_ours, trial.code))
    return True


def _wrong_end(model: Model, seed: int) -> str | None:
    return wander(model, seed)[0]


def _failure(seed: int, parts: Parts | None = None) -> str | None:
    """What is wrong with this run; None: nothing."""
    try:
        Run(seed, parts).report()
    except AssertionError as error:
        return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="every size, instead of the small ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--folder", type=Path, default=Path(".watershed/models"), help="where the whole is kept")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    until: float = monotonic() + chosen.minutes * 60

    def is_up() -> bool:
        return monotonic() >= until

    table = Table(chosen.folder if chosen.whole else None)
    find_controls(table)
    seeds = SEEDS_WHOLE if chosen.whole else SEEDS
    is_finished = all(try_seeds(trial, seeds, table, is_up) for trial in trials())
    is_finished = is_finished and all(go_through(size, table, is_up) for size in (WHOLE if chosen.whole else SMALL))
    if not all(line.is_right for line in table.lines):
        return 1
    return 0 if is_finished else 2


if __name__ == "__main__":
    sys.exit(main())

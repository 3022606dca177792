"""The raw data: for each part a file of JSON lines, the first of which describes the environment; each other one is a
run. A file is only ever replaced as a whole, so an interrupted benchmark leaves complete runs, and continues after
them.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.model.errors import StackError
from tests.support.config_files import replace_text

# What may differ between two attempts at the same measurement.
UNIDENTIFYING: Final = ("command", "date")


@dataclass(frozen=True, slots=True)
class Run:
    """One arm of one case, measured once. `figures`: values by name; None for what the run was too short for."""

    case: str
    arm: str
    round: int
    at: str  # UTC
    figures: Mapping[str, float | None]


def identity(environment: Mapping[str, Any]) -> str:
    """Returns 12 hexadecimal digits: the same for runs that may be compared."""
    known = {name: value for name, value in environment.items() if name not in UNIDENTIFYING}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


@dataclass
class RawData:
    """The runs of one part. `path` is created with the first run."""

    path: Path
    environment: Mapping[str, Any]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path, environment: Mapping[str, Any]) -> "RawData":
        """Returns the runs so far. Raises StackError if the file is damaged, or of another environment."""
        if not path.exists():
            return cls(path, environment)
        found = read(path)
        if identity(found.environment) != identity(environment):
            raise StackError(f"{path} has runs of another environment", "move it away, and start again")
        return found

    def has(self, case: str, arm: str, number: int) -> bool:
        return any((run.case, run.arm, run.round) == (case, arm, number) for run in self.runs)

    def add(self, case: str, arm: str, number: int, figures: Mapping[str, float | None]) -> None:
        """Adds a run, and replaces the file."""
        self.add_all(arm, number, {case: figures})

    def add_all(self, arm: str, number: int, cases: Mapping[str, Mapping[str, float | None]]) -> None:
        """Adds the runs of several cases that were measured together, and replaces the file once."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.runs += [Run(case, arm, number, at, figures) for case, figures in cases.items()]
        self.write(self.path)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(f"{line}\n" for line in self._lines()))

    def _lines(self) -> Iterator[str]:
        yield json.dumps({"environment": self.environment})
        for run in self.runs:
            yield json.dumps(asdict(run))


def read(path: Path) -> RawData:
    """Raises StackError with the number of a line that is not one of raw data."""
    number = 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        number = 1
        environment = json.loads(lines[0])["environment"]
        runs = []
        for line in lines[1:]:
            number += 1
            runs.append(Run(**json.loads(line)))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise StackError(
            f"{path}, line {number}, is not raw data of the benchmark: {error!r}",
            "take the file from the repository again, or delete it and measure again",
        ) from error
    return RawData(path, environment, runs)


def read_all(folder: Path) -> dict[str, RawData]:
    """Returns the raw data by part, of all files in a folder."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))}


Wanted = tuple[str, str, int]  # case, arm and round of a run that is still to be made


def missing(raw: RawData, cases: Sequence[str], arms: Sequence[str], rounds: int) -> list[Wanted]:
    """Returns the runs of these cases that are still to be made, in turns."""
    return [
        (case, arm, number)
        for case in cases
        for number in range(1, rounds + 1)
        for arm in in_turn(arms, number)
        if not raw.has(case, arm, number)
    ]


def in_turn(arms: Sequence[str], number: int) -> list[str]:
    """Returns the arms in the order of this round: each begins a round in its turn, so that none is always first."""
    start = (number - 1) % len(arms)
    return [*arms[start:], *arms[:start]]

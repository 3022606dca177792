"""The rule of `tests/test_tidy.py` that modules of one package do not import each other in a circle."""

from collections.abc import Collection, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from tests.tidy import OURS, Source, Violation, imports


def imports_follow_no_circle(sources: Sequence[Source], circular: Collection[str]) -> Iterator[Violation]:
    """One circle of each package, through imports in functions too. `circular`: packages that may have some."""
    python = {source.module: source for source in sources if source.is_python}
    for package in OURS:
        modules = {name: source for name, source in python.items() if name.partition(".")[0] == package}
        # `from a import b` imports the module b of a, or a name in a.
        needed = {
            module: {name if name in modules else name.rpartition(".")[0] for _, name in imports(source)} - {module}
            for module, source in modules.items()
        }
        try:
            TopologicalSorter(needed).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            if package not in circular:
                yield Violation(modules[circle[0]].path, 1, f"imports follow a circle: {' → '.join(circle)}")
        else:
            if package in circular:
                yield Violation(PurePosixPath(package), 1, "needs no exception any more")

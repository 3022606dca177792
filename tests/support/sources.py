"""The repository's text files, and what Python files import: what the rules of tests/test_imports.py and
tests/test_repository.py read."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_REFERENCE: Final = re.compile(r"\w+(?:\.\w+)+(?::\w+)?")


@dataclass(frozen=True)
class Source:
    """A file of the repository; `path` is relative to its root."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def module(self) -> str:
        """`cdc/postgres/__init__.py` is `cdc.postgres`."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A place that breaks a rule."""

    path: PurePosixPath
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@cache
def repository() -> tuple[Source, ...]:
    """Returns every text file that git has or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sources = []
    for name in sorted(set(filter(None, listed.split("\0")))):
        try:
            sources.append(Source(PurePosixPath(name), (ROOT / name).read_text(encoding="utf-8")))
        except (FileNotFoundError, UnicodeDecodeError):  # deleted and not yet committed; not text
            continue
    return tuple(sources)


@cache
def imports(source: Source) -> tuple[tuple[int, str], ...]:
    """Returns (line, full name) of every import, those in functions too: `from a import b` is `a.b`, relative ones are
    resolved."""
    return tuple(_imports(source))


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    package = source.module.split(".")
    if source.path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                base = [*base, *((module or "").split(".") if module else [])]
                for alias in names:
                    yield node.lineno, ".".join(base if alias.name == "*" else [*base, alias.name])


def references(source: Source) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of every string that names a module of ours, alone or as `module:name`: an import that no
    import statement shows."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _REFERENCE.fullmatch(node.value):
            name = node.value.partition(":")[0]
            path = ROOT / name.replace(".", "/")
            if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
                yield node.lineno, name

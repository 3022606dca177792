"""Rules of the repository that no linter has: what may stand in a file, and dependencies that are locked and explained.

Imports have tests of their own: tests/test_imports.py.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.sources import ROOT, Source, Violation, repository

FILE_LINES_MAX: Final = 800
REASON_CHARS_MIN: Final = 10  # a shorter one says nothing
FOLDERS: Final = ("cdc", "client", "deploy", "docs", "migrations", "sinks", "spark_jobs", "tests", "watershed")
SLEEPER: Final = PurePosixPath("tests/support/waiting.py")

# What must not be in any file. One letter of each in brackets, because this file is searched too.
UNFINISHED: Final = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|NotImplemented[E]rror)\b")
ELSEWHERE: Final = re.compile(r"/(?:root|farm|work)[/]|\.[l]ibrary\b|\.\./[s]hared\b")
REGISTRIES: Final = re.compile(
    r"\b(?:pypi\.[o]rg|pythonhosted\.[o]rg|repo1?\.[m]aven\.|maven\.[o]rg|npmjs\.[oc]|crates\.[i]o|proxy\.[g]olang\."
    r"|deb\.[d]ebian\.|docker\.[i]o|ghcr\.[i]o|quay\.[i]o|gcr\.[i]o)"
)


def forbidden_words(source: Source) -> Iterator[Violation]:
    """Marks of unfinished work, paths of somebody's machine, host names of registries."""
    patterns = {"a mark of unfinished work": UNFINISHED, "a path of a machine": ELSEWHERE, "a registry": REGISTRIES}
    for number, line in enumerate(source.text.splitlines(), 1):
        for what, pattern in patterns.items():
            if found := pattern.search(line):
                yield Violation(source.path, number, f"{what}: {found[0]}")


def long_files(source: Source) -> Iterator[Violation]:
    """A file of Python above FILE_LINES_MAX lines: is it still one idea?"""
    count = len(source.text.splitlines())
    if source.is_python and count > FILE_LINES_MAX:
        yield Violation(source.path, count, f"{count} lines, {FILE_LINES_MAX} at most")


def unexplained_broad_excepts(source: Source) -> Iterator[Violation]:
    """One that catches everything raises it again, or says beside it why it may not."""
    if not source.is_python:
        return
    lines = source.text.splitlines()
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler) or not _is_broad(node.type):
            continue
        raises = any(isinstance(part, ast.Raise) and part.exc is None for part in ast.walk(node))
        comments = " ".join(line.partition("#")[2] for line in lines[node.lineno - 1 : node.body[0].lineno - 1])
        reason = comments.replace("noqa: BLE001", "").strip(" #:-")
        if not raises and len(reason) < REASON_CHARS_MIN:
            yield Violation(source.path, node.lineno, "catches everything: name the class, or say why in a comment")


def _is_broad(caught: ast.expr | None) -> bool:
    match caught:
        case None:
            return True
        case ast.Name(id=name):
            return name in ("Exception", "BaseException")
        case ast.Tuple(elts=parts):
            return any(map(_is_broad, parts))
        case _:
            return False


def sleeping_tests(source: Source) -> Iterator[Violation]:
    """Only the polling helper sleeps."""
    if not source.is_python or source.path.parts[0] != "tests" or source.path == SLEEPER:
        return
    if source.path.parts[1] == "bench":
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep", value=ast.Name(id="time"))):
                yield Violation(source.path, node.lineno, f"wait for a condition ({SLEEPER}), don't sleep")
            case ast.ImportFrom(module="time", names=names) if any(alias.name == "sleep" for alias in names):
                yield Violation(source.path, node.lineno, f"wait for a condition ({SLEEPER}), don't sleep")


RULES: list[Callable[[Source], Iterator[Violation]]] = [
    forbidden_words,
    long_files,
    unexplained_broad_excepts,
    sleeping_tests,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_files_keep_the_rule(rule: Callable[[Source], Iterator[Violation]]) -> None:
    found = sorted({violation for source in repository() for violation in rule(source)})
    assert not found, "\n".join(map(str, found))


def test_the_visible_folders_are_the_nine_of_the_architecture() -> None:
    folders = {source.path.parts[0] for source in repository() if len(source.path.parts) > 1}
    assert {name for name in folders if not name.startswith(".")} == set(FOLDERS)


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
)
def test_documents_name_files_and_definitions_that_exist(name: str) -> None:
    """Paths in code spans, and `name` in `path`, as the section "Where to find what" has them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    folders = "|".join(FOLDERS)
    paths = set(re.findall(rf"`((?:{folders})/[\w/.-]+)`", text))
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    for definition, path in re.findall(rf"`(\w+)(?:\(\))?` in `((?:{folders})/[\w/.]+)`", text):
        assert re.search(
            rf"^\s*(?:def |class )?{definition}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), f"{path} has no {definition}"


def unexplained_dependencies(project: str) -> list[str]:
    """Returns the dependencies in a pyproject.toml that have no comment on their line."""
    tables = tomllib.loads(project)["project"]
    wanted = [*tables["dependencies"], *(name for names in tables["optional-dependencies"].values() for name in names)]
    lines = project.splitlines()
    return [
        dependency
        for dependency in dict.fromkeys(wanted)
        if not any(
            line.partition(f'"{dependency}"')[2].partition("#")[2].strip()
            for line in lines
            if f'"{dependency}"' in line
        )
    ]


def test_every_dependency_has_its_reason() -> None:
    assert unexplained_dependencies((ROOT / "pyproject.toml").read_text(encoding="utf-8")) == []


def test_the_lock_satisfies_the_project() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {name: Version(version) for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock, re.MULTILINE)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    unsatisfied = [
        text
        for text, requirement in ((text, Requirement(text)) for text in wanted)
        if not requirement.specifier.contains(locked.get(requirement.name.lower(), Version("0")), prereleases=True)
    ]
    assert unsatisfied == [], "run `make lock`"


# Each rule can fail.


def python(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text)


# Written backwards, because this file is searched too.
@pytest.mark.parametrize(
    "drow",
    [
        *("retal :ODOT", "EMXIF", "rorrEdetnemelpmItoN esiar"),
        *("x/toor/", "niam/krow/ dc", "yrarbil. ees", "x/derahs/..", "gro.ipyp", "x/gro.nevam.1oper//:sptth", "oi.rcg"),
    ],
)
def test_forbidden_words_are_found(drow: str) -> None:
    assert list(forbidden_words(python("README.md", f"text\n{drow[::-1]}\n")))


def test_words_that_only_resemble_those_pass() -> None:
    text = "a network/working copy, a shared/ folder, our library, XXXL, Maven's host, apache/kafka\n"
    assert list(forbidden_words(python("README.md", text))) == []


@pytest.mark.parametrize(
    ("handler", "is_kept"),
    [
        ("except:\n    pass", False),
        ("except Exception:\n    pass", False),
        ("except (ValueError, BaseException) as error:\n    raise RuntimeError from error", False),
        ("except Exception:  # noqa: BLE001\n    pass", False),
        ("except Exception:  # noqa: BLE001  the thread's edge: passed on to the caller\n    pass", True),
        ("except Exception as error:\n    # Nothing is known about it.\n    stop(error)", True),
        ("except BaseException:\n    close()\n    raise", True),
        ("except ValueError:\n    pass", True),
    ],
)
def test_broad_excepts_without_reason_are_found(handler: str, is_kept: bool) -> None:
    source = python("cdc/x.py", f"try:\n    work()\n{handler}\n")
    assert (list(unexplained_broad_excepts(source)) == []) is is_kept


@pytest.mark.parametrize(
    ("path", "text", "is_kept"),
    [
        ("tests/unit/test_x.py", "import time\ntime.sleep(1)", False),
        ("tests/unit/test_x.py", "from time import sleep", False),
        ("tests/support/waiting.py", "import time\ntime.sleep(1)", True),
        ("watershed/devstack/server.py", "import time\ntime.sleep(1)", True),
    ],
)
def test_sleeping_tests_are_found(path: str, text: str, is_kept: bool) -> None:
    assert (list(sleeping_tests(python(path, text))) == []) is is_kept


def test_a_long_file_is_found() -> None:
    assert list(long_files(python("cdc/x.py", "x = 1\n" * (FILE_LINES_MAX + 1))))
    assert list(long_files(python("cdc/x.py", "x = 1\n" * FILE_LINES_MAX))) == []


def test_a_dependency_without_reason_is_found() -> None:
    def project(lines: str) -> str:
        return f"[project]\n{lines}\n[project.optional-dependencies]\n"

    assert unexplained_dependencies(project('dependencies = [\n  "a>=1",\n]')) == ["a>=1"]
    assert unexplained_dependencies(project('dependencies = [\n  "a>=1",  # what it does\n]')) == []

"""The rules of `tests/test_tidy.py`: pure functions from sources to violations, so that each can be seen to fail."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

FILE_LINES_MAX: Final = 800
FUNCTION_LINES_MAX: Final = 70
PARAMETERS_MAX: Final = 8
CAPTURE_LINES_MAX: Final = 25_000  # of cdc/: what a newcomer has to enter
REASON_CHARS_MIN: Final = 10  # shorter than that says nothing

# The module from which all of capture is reached.
CAPTURE: Final = "cdc.daemon.service"

# Packages that the command line puts together.
_PRODUCT: Final = (
    *("cdc", "configuration", "jars", "migrations", "monitoring", "sinks", "spark_jobs", "verification", "views"),
    "watershed_client",
)

# The folders of cdc/, from the nouns to the daemon: each imports only itself and folders above it in this list.
LAYERS: Final = (
    "model",
    "pgoutput",
    "config",
    "ports",
    "formats",
    "outbox",
    "snapshots",
    "capture",
    "tables",
    "postgres",
    "kafka",
    "daemon",
)

# Who may import what of ours; the longest name that fits a module counts. Names of modules, with all below them.
# Capture knows nothing of stores and views, and nothing imports the commands.
ROOMS: Final[Mapping[str, tuple[str, ...]]] = {
    "cdc": ("cdc.__version__",),
    **{
        f"cdc.{folder}": ("cdc.__version__", *(f"cdc.{above}" for above in LAYERS[: number + 1]))
        for number, folder in enumerate(LAYERS)
    },
    "configuration": ("configuration", "cdc.model", "cdc.config"),
    "watershed_client": ("watershed_client", *(f"cdc.{folder}" for folder in ("model", "config", "kafka", "postgres"))),
    "monitoring": (
        *("monitoring", "watershed_client", "configuration"),
        *(f"cdc.{folder}" for folder in LAYERS if folder != "daemon"),
    ),
    "migrations": ("migrations", "cdc.model", "cdc.config", "cdc.postgres"),
    "sinks": ("sinks", "configuration", "cdc.model", "cdc.config", "cdc.formats"),
    "spark_jobs": ("spark_jobs", "sinks", "jars", "monitoring", "watershed_client", "configuration", "cdc"),
    "verification": ("verification", "sinks", "monitoring", "watershed_client", "configuration", "cdc"),
    "views": (
        *("views", "sinks", "configuration", "monitoring.view_facts"),
        *("cdc.model", "cdc.config", "cdc.formats", "cdc.postgres", "cdc.kafka"),
    ),
    "jars": ("jars", "cdc.model"),
    "devstack": ("devstack", "jars", "cdc.model"),
    "operations": (*_PRODUCT, "operations", "devstack", "demo"),
    "demo": (*_PRODUCT, "demo", "devstack"),
    "bench": (*_PRODUCT, "bench", "demo", "devstack", "tests"),
    "examples": ("examples", "sinks", "configuration", "cdc.config", "cdc.model"),
    "docs_build": ("docs_build", "operations", "monitoring", "configuration", "sinks", "cdc"),
    "tests": (*_PRODUCT, "tests", "operations", "docs_build", "examples", "bench", "demo", "devstack"),
}
OURS: Final = tuple(name for name in ROOMS if "." not in name)

# Modules that only these may import.
RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "operations": ("operations", "docs_build", "tests"),
    "anyio": ("operations.http", "tests"),
    "starlette": ("operations.http", "tests"),
    "uvicorn": ("operations.http", "tests"),
    "prometheus_client": ("operations.http", "tests"),
    "psycopg": (
        "cdc.postgres",
        "views",
        "watershed_client",
        "verification",
        "operations",
        "migrations",
        "devstack",
        "demo",
        "bench",
        "tests",
    ),
    "confluent_kafka": (
        *("cdc.kafka", "watershed_client", "verification", "spark_jobs", "views"),
        *("devstack", "demo", "bench", "tests"),
    ),
    "alembic": ("migrations", "tests"),
    "sqlalchemy": (
        "migrations",
        "sinks.sql",
        "sinks.warehouse.catalog",
        "sinks.warehouse.slots",
        "watershed_client.outbox",
        "operations.cli.outbox",
        "tests",
    ),
    "pyspark": ("spark_jobs", "bench", "tests"),
    "py4j": ("spark_jobs", "bench", "tests"),
    "pyarrow": ("spark_jobs", "sinks.warehouse", "demo", "bench", "tests"),
    "pyiceberg": ("sinks.warehouse", "demo", "bench", "tests"),
    "opensearchpy": ("sinks.search", "devstack", "demo", "bench", "tests"),
    "redis": ("sinks.cache", "devstack", "demo", "bench", "tests"),
    "sqlglot": ("views", "tests"),
    "jgo": ("jars", "tests"),
    "typer": ("operations.cli", "docs_build", "tests"),
    "psutil": ("devstack", "demo", "bench", "tests"),
    "pytest": ("tests",),
    "hypothesis": ("tests",),
}

# The middle of capture: bytes and values in, bytes and values out.
PURE: Final = (
    *("cdc.model", "cdc.pgoutput", "cdc.ports", "cdc.formats", "cdc.outbox"),
    *("cdc.config.columns", "cdc.config.format_options", "cdc.config.masking"),
    *("cdc.config.outbox_routing", "cdc.config.outbox_settings", "cdc.config.section", "configuration.topic_names"),
    *("cdc.capture.toast_batch", "cdc.snapshots.sweeps", "cdc.snapshots.signal_answers", "monitoring.fill_progress"),
    *("cdc.capture.assembler", "cdc.capture.confirmation", "cdc.capture.kafka_transaction", "cdc.capture.stream_lag"),
    *("cdc.capture.stream_state", "cdc.capture.transaction_records"),
    *("cdc.tables.continuity", "cdc.tables.schema_changes", "cdc.tables.selection"),
    *("monitoring.facts", "monitoring.model", "monitoring.history", "monitoring.compute", "monitoring.problems"),
    *("monitoring.views", "watershed_client.applied"),
)
# The loops act, and log, but reach the world through ports only.
LOOPS: Final = ("cdc.formats.unpublishable", "cdc.snapshots", "cdc.capture", "cdc.tables")
EDGES: Final = ("cdc.postgres", "cdc.kafka", "cdc.daemon", "operations", "psycopg", "confluent_kafka", "socket")
WORLD: Final = (
    *("asyncio", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors"),
    *("signal", "structlog", "subprocess", "tempfile", "threading", "time", "urllib.request"),
)

# What must not be in any file. One letter of each in brackets, because this file is searched too.
UNFINISHED: Final = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|NotImplemented[E]rror)\b")
ELSEWHERE: Final = re.compile(r"/(?:root|farm|work)[/]|\.[l]ibrary\b|\.\./[s]hared\b")
REGISTRIES: Final = re.compile(
    r"\b(?:pypi\.[o]rg|pythonhosted\.[o]rg|repo1?\.[m]aven\.|maven\.[o]rg|npmjs\.[oc]|crates\.[i]o|proxy\.[g]olang\."
    r"|deb\.[d]ebian\.|docker\.[i]o|ghcr\.[i]o|quay\.[i]o|gcr\.[i]o)"
)

# A docstring is a sentence, or a noun phrase with its article; it begins with none of these.
FRAGMENTS: Final = (
    *("As", "At", "Back", "Before", "Behind", "By", "For", "From", "How", "In", "None", "Nothing", "Of", "See", "So"),
    *("Those", "To", "Until", "What", "When", "Where", "Whether", "Which", "Why", "Within", "Without"),
)
PRIVATE_WORDS: Final = re.compile(r"\b(anew|a look|gives? back|given back|told|untold|looks? at|looked at)\b")

TESTED_ROOMS: Final = (*_PRODUCT, "operations", "devstack")
SLEEPER: Final = PurePosixPath("tests/support/waiting.py")


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
    path: PurePosixPath
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def is_below(module: str, names: Sequence[str]) -> bool:
    """Is the module one of these, or in one of them?"""
    return any(module == name or module.startswith(f"{name}.") for name in names)


# Imports


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, full name) of every import, those in functions too: `from a import b` is `a.b`, relative ones are
    resolved, and `import_module` of a literal counts."""
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
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name))]):
                if called in ("import_module", "__import__"):
                    yield node.lineno, name


def rooms_are_kept(source: Source) -> Iterator[Violation]:
    """Each package imports only what it may, and some libraries belong to one package."""
    room = max((name for name in ROOMS if is_below(source.module, [name])), key=len, default=None)
    if room is None:
        return
    if room == "cdc" and source.module != "cdc":
        yield Violation(source.path, 1, f"lies in no folder of cdc/ that has a place in its order: {', '.join(LAYERS)}")
    for line, name in imports(source):
        if name == "cdc" and room.startswith("cdc."):
            continue  # its version
        if is_below(name, OURS) and not is_below(name, ROOMS[room]):
            yield Violation(source.path, line, f"{room} may not import {name}, only {', '.join(ROOMS[room])}")
        for reserved, owners in RESERVED.items():
            if is_below(name, [reserved]) and not is_below(source.module, owners):
                yield Violation(source.path, line, f"only {', '.join(owners)} may import {reserved}")


def the_middle_is_pure(source: Source) -> Iterator[Violation]:
    """Capture's middle does no I/O, asks no clock, and draws no random number; its loops do so through ports."""
    named = max((name for name in (*PURE, *LOOPS) if is_below(source.module, [name])), key=len, default=None)
    if named is None:
        return
    banned, kind = ((*EDGES, *WORLD), "is pure") if named in PURE else (EDGES, "reaches the world through cdc.ports")
    for line, name in imports(source):
        if is_below(name, banned):
            yield Violation(source.path, line, f"{source.module} {kind}, and may not import {name}")


# Shape of sources


def modules_say_what_they_are(source: Source) -> Iterator[Violation]:
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield Violation(source.path, 1, "a module begins with a docstring")


def sizes_are_bounded(source: Source, long_functions: Mapping[str, str]) -> Iterator[Violation]:
    """`long_functions`: `path::name` of those that may be longer, or `path` of a file, with the reason."""
    count = len(source.text.splitlines())
    if count <= FILE_LINES_MAX and str(source.path) in long_functions:
        yield Violation(source.path, count, "needs no exception any more")
    if count > FILE_LINES_MAX and str(source.path) not in long_functions:
        yield Violation(source.path, count, f"{count} lines, {FILE_LINES_MAX} at most: is it still one idea?")
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            excused = f"{source.path}::{node.name}" in long_functions
            if length > FUNCTION_LINES_MAX and not excused:
                yield Violation(
                    source.path, node.lineno, f"{node.name} has {length} lines, {FUNCTION_LINES_MAX} at most"
                )
            if length <= FUNCTION_LINES_MAX and excused:
                yield Violation(source.path, node.lineno, f"{node.name} needs no exception any more")


def parameters_are_few(source: Source, wide_functions: Mapping[str, str]) -> Iterator[Violation]:
    """A function outside of tests/ takes PARAMETERS_MAX parameters at most.

    `wide_functions`: `path::name` of those that may take more, with the reason.
    """
    if source.path.parts[0] == "tests":
        return
    wide = {
        f"{source.path}::{node.name}": (node.lineno, count)
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (count := parameter_count(node)) > PARAMETERS_MAX
    }
    for name, (line, count) in wide.items():
        if name not in wide_functions:
            yield Violation(
                source.path, line, f"{name} has {count} parameters, {PARAMETERS_MAX} at most: group them by meaning"
            )
    for name in wide_functions:
        if name.startswith(f"{source.path}::") and name not in wide:
            yield Violation(source.path, 1, f"{name} needs no exception any more")


def parameter_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of parameters, without `self` and `cls`."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def docstrings_are_sentences(source: Source) -> Iterator[Violation]:
    """A docstring does not begin with a fragment, and has no word that only this project used."""
    if source.path.parts[0] == "tests":
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node) or ""
        line = 1 if isinstance(node, ast.Module) else node.lineno
        first = text.split(maxsplit=1)[0].rstrip(",:") if text else ""
        if first in FRAGMENTS:
            yield Violation(source.path, line, f"a docstring begins with {first!r}: say what it is, does or returns")
        if found := PRIVATE_WORDS.search(text):
            yield Violation(source.path, line, f"a docstring says {found[0]!r}: use the standard term")


def broad_excepts_have_reasons(source: Source) -> Iterator[Violation]:
    """One that catches everything raises it again, or says beside it why it may not."""
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


def waits_are_for_conditions(source: Source) -> Iterator[Violation]:
    """Only the polling helper sleeps."""
    if source.path.parts[0] != "tests" or source.path == SLEEPER:
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep")):
                yield Violation(source.path, node.lineno, f"wait for a condition ({SLEEPER}), don't sleep")
            case ast.ImportFrom(module="time", names=names) if any(alias.name == "sleep" for alias in names):
                yield Violation(source.path, node.lineno, f"wait for a condition ({SLEEPER}), don't sleep")


# Words, in every file that is text


def nothing_is_unfinished(source: Source) -> Iterator[Violation]:
    yield from _found(source, UNFINISHED, "a mark of unfinished work")


def nothing_points_elsewhere(source: Source) -> Iterator[Violation]:
    yield from _found(source, ELSEWHERE, "a path of somebody's machine")
    yield from _found(source, REGISTRIES, "a registry's host name")


def _found(source: Source, pattern: re.Pattern[str], what: str) -> Iterator[Violation]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := pattern.search(line):
            yield Violation(source.path, number, f"{what}: {found[0]}")


# The whole


def sources_have_tests(sources: Sequence[Source], covered: Mapping[str, str]) -> Iterator[Violation]:
    """`cdc/a/b.py` has `tests/unit/cdc/a/test_b.py`, unless it only declares. `covered`: others that have not, with
    `test file: reason`."""
    paths = [source.path for source in sources]
    known = set(paths)
    declaring = {source.path for source in sources if source.is_python and only_declares(source)}
    for path in sorted(path for path in paths if path.parts[0] in TESTED_ROOMS and path.suffix == ".py"):
        if path.name == "__init__.py" or path in declaring:
            continue
        test = PurePosixPath("tests/unit", *path.parent.parts, f"test_{path.stem.strip('_')}.py")
        reason = covered.get(str(path))
        if reason is None and test not in known:
            yield Violation(path, 1, f"has no {test}")
        elif reason is not None and test in known:
            yield Violation(path, 1, f"needs no exception: it has {test}")
    for name, reason in covered.items():
        test_name, _, why = reason.partition(": ")
        if PurePosixPath(name) not in known:
            yield Violation(PurePosixPath(name), 1, "is excepted, and is not there")
        if PurePosixPath(test_name) not in known or len(why) < REASON_CHARS_MIN:
            yield Violation(PurePosixPath(name), 1, f"its exception names no test file and reason: {reason}")


def capture_is_small(sources: Sequence[Source]) -> Iterator[Violation]:
    """cdc/ has CAPTURE_LINES_MAX lines at most, and holds only modules that capture's process imports."""
    modules = {source.module: source for source in sources if source.is_python and source.path.parts[0] == "cdc"}
    lines = sum(len(source.text.splitlines()) for source in modules.values())
    if lines > CAPTURE_LINES_MAX:
        yield Violation(PurePosixPath("cdc"), lines, f"cdc/ has {lines} lines, {CAPTURE_LINES_MAX} at most")
    reached: set[str] = set()
    found = [CAPTURE]
    while found:
        name = found.pop()
        # `from a import b` imports a, and b too if it is a module.
        for module in (name, name.rpartition(".")[0]):
            if module in modules and module not in reached:
                reached.add(module)
                found += [imported for _, imported in imports(modules[module])]
    for module, source in modules.items():
        if module not in reached and source.path.name != "__init__.py":
            yield Violation(source.path, 1, f"{CAPTURE} does not need it: it belongs to the package that does")


def only_declares(source: Source) -> bool:
    """Constants, types and signatures: no function in it does anything that a test could see."""
    return not any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not all(map(_does_nothing, node.body))
        for node in ast.walk(source.tree)
    )


def _does_nothing(part: ast.stmt) -> bool:
    """A docstring, `...` or `pass`."""
    return isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))


def dependencies_have_reasons(project: Source) -> Iterator[Violation]:
    """Every dependency in pyproject.toml has a comment on its line."""
    tables = tomllib.loads(project.text)["project"]
    wanted = [*tables["dependencies"], *(name for names in tables["optional-dependencies"].values() for name in names)]
    lines = project.text.splitlines()
    for dependency in dict.fromkeys(wanted):
        for number, line in enumerate(lines, 1):
            _, quoted, rest = line.partition(f'"{dependency}"')
            if quoted and not rest.partition("#")[2].strip():
                yield Violation(project.path, number, f"{dependency} has no reason beside it")

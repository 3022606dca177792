"""The generated parts of pages, each a Markdown text."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer.main
import yaml

from cdc.model import errors
from docs.build import compatibility
from docs.build.options import SectionOptions, sections
from docs.build.types import type_rows
from docs.build.versions import version_rows
from sinks.shaping.expressions.functions import FUNCTIONS
from watershed.cli.main import COMMANDS, application
from watershed.http.metrics import metric_families
from watershed.status.model import BrokerStatus, CaptureStatus, SourceStatus, Status

ROOT: Final = Path(__file__).parents[2]
UNKNOWN: Final = Status(
    prefix="shop",
    unix_seconds=0,
    source=SourceStatus(is_reachable=False),
    brokers=BrokerStatus(is_reachable=False),
    capture=CaptureStatus(state="unknown", lost_events=0),
    tables=(),
    sinks=(),
    problems=(),
)
# A generated part lies between two comments, so that a page is whole wherever it is read.
PART: Final = re.compile(r"^<!-- generated: (\w+) -->\n(?:.*?)^<!-- end: \1 -->$", re.MULTILINE | re.DOTALL)


def refreshed(markdown: str) -> str:
    """Returns the page with each of its generated parts as the code has it now. Raises KeyError for an unknown part."""
    return PART.sub(
        lambda part: f"<!-- generated: {part[1]} -->\n\n{PARTS[part[1]]()}\n\n<!-- end: {part[1]} -->", markdown
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    one_line = " ".join(text.split())
    parts = one_line.split("`")  # outside of code, < would begin HTML
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def configuration() -> str:
    """Every section of the configuration file."""
    return "\n\n".join(_section(section) for section in sections())


def _section(section: SectionOptions) -> str:
    rows = [(f"`{one.name}`", one.type, one.default, one.meaning) for one in section.options]
    lead = section.meaning.split("\n\n")[0]
    return f"## `{section.path}`\n\n{lead}\n\n{table(['option', 'type', 'default', 'meaning'], rows)}"


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n\n".join(text for name in COMMANDS for text in _commands(name))


def _commands(name: str) -> Iterator[str]:
    command = typer.main.get_command(application([name])).commands[name]  # type: ignore[attr-defined]
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    yield f"## `cdc {name}`\n\n{COMMANDS[name].help}"
    if not inner:
        yield _command(command)
    for word, one in inner.items():
        yield f"### `cdc {name} {word}`\n\n{_command(one)}"


def _command(command: Any) -> str:
    """The description, and the table of arguments and options."""
    rows = [
        (
            ", ".join(f"`{word}`" for word in (*one.opts, *one.secondary_opts)) if one.param_type_name == "option"
            else f"`{(one.metavar or one.name).upper()}`",
            _default(one),
            one.help or "",
        )
        for one in command.params
        if not one.hidden and one.name != "help"
    ]  # fmt: skip
    text = inspect.cleandoc(command.callback.__doc__ or command.help or "")
    return f"{text}\n\n{table(['argument or option', 'default', 'meaning'], rows)}" if rows else text


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    several = "; repeatable" if parameter.multiple or parameter.nargs == -1 else ""
    if value is None or callable(value) or value in ("", (), []):
        return f"none{several}"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`{several}"


def metrics() -> str:
    """Every metric of `/metrics`."""
    rows = []
    for family in metric_families(UNKNOWN, is_ready=True):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    return table(["metric", "kind", "labels", "meaning"], rows)


def error_kinds() -> str:
    """Every kind of error with its exit code."""
    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.WatershedError)
    ]
    rows = [(f"`{kind.__name__}`", str(kind.exit_code), inspect.getdoc(kind) or "") for kind in kinds]
    return table(["error", "exit code", "meaning"], rows)


def alerts() -> str:
    """The alert rules that deploy/docker/monitoring has."""
    text = (ROOT / "deploy/docker/monitoring/alerts.yml").read_text(encoding="utf-8")
    rows = [
        (
            f"`{rule['alert']}`",
            rule["labels"]["severity"],
            f"`{rule['expr']}`" + (f", for {rule['for']}" if "for" in rule else ""),
            rule["annotations"]["description"],
        )
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
    return table(["alert", "severity", "condition", "what to do"], rows)


def types() -> str:
    """The form of each type in records and stores."""
    return table(["PostgreSQL", "in records", "search field", "warehouse", "PostgreSQL store", "SQLite"], type_rows())


def functions() -> str:
    """The functions of computed columns."""
    rows = [(f"`{one.form}`", one.meaning, f"`{one.example}`", _result(one.result)) for one in FUNCTIONS.values()]
    return table(["function", "meaning", "example", "value"], rows)


def _result(value: str | int | bool | None) -> str:
    if value is None:
        return "NULL"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def versions() -> str:
    """The versions that are accepted, and those that tests run."""
    return table(["product", "accepted", "run by tests", "remark"], version_rows())


def combinations(subject: str) -> str:
    """What tests show of the combinations of a subject."""
    return table(compatibility.head(subject), compatibility.rows(subject))


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "configuration": configuration,
    "commands": commands,
    "metrics": metrics,
    "errors": error_kinds,
    "alerts": alerts,
    "types": types,
    "functions": functions,
    "versions": versions,
    **{f"combinations_{subject}": partial(combinations, subject) for subject in compatibility.SUBJECTS},
}

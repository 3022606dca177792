"""The documentation: links that lead somewhere, pages that are in the menu, and a README that is short."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT: Final = Path(__file__).parent.parent
README_LINES_MAX: Final = 120
PAGES: Final = sorted(ROOT.glob("docs/**/*.md"))
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

"""Writes the generated parts of the pages, and the console's glossary, again, after the code has changed:
`python -m docs.build.refresh`.

tests/test_docs.py fails while a page differs from the code.
"""

from collections.abc import Iterator
from pathlib import Path

from docs.build import glossary
from docs.build.pages import PART, ROOT, refreshed


def pages() -> Iterator[Path]:
    """Returns the pages that have a generated part."""
    for page in sorted(ROOT.glob("docs/**/*.md")):
        if PART.search(page.read_text(encoding="utf-8")):
            yield page


def main() -> None:
    """Writes the pages that have changed, and prints their names; and the console's glossary."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))
    glossary.FILE.write_text(glossary.glossary_json(), encoding="utf-8")


if __name__ == "__main__":
    main()

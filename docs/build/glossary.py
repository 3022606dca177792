"""The glossary as the console has it: the words of docs/reference/glossary.md with their meanings as plain text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.build.pages import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "glossary.md"
FILE: Final = ROOT / "watershed" / "http" / "console" / "glossary.json"
_ROW: Final = re.compile(r"^\| (?!word \||---)(?P<word>.+?) \| (?P<meaning>.+) \|$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def glossary_json(page: Path = PAGE) -> str:
    """Returns a JSON list of [word, meaning], in the order of the page."""
    return json.dumps(list(_words(page.read_text(encoding="utf-8"))), ensure_ascii=False, indent=1) + "\n"


def _words(markdown: str) -> Iterator[tuple[str, str]]:
    for row in _ROW.finditer(markdown):
        yield row["word"], re.sub(r"[`*]", "", _LINK.sub(r"\1", row["meaning"]))

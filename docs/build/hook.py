"""The hook that MkDocs calls for each page (`hooks` in mkdocs.yml)."""

import re
from pathlib import PurePosixPath
from typing import Any

_UPWARD = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>(?:\.\./)+)(?P<file>(?!\.\./)[\w./-]+)[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file outside of docs/, which the site does not have, becomes the file's name."""
    return shown(markdown, len(PurePosixPath(page.file.src_uri).parts))


def shown(markdown: str, depth: int) -> str:
    """`depth`: the number of parts of the page's path within docs/."""

    def without_outside(link: re.Match[str]) -> str:
        leaves = link["up"].count("../") >= depth
        return f"{link['text']} (`{link['file']}`)" if leaves else link[0]

    return _UPWARD.sub(without_outside, markdown)

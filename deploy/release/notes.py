"""The notes of a release: its section of CHANGELOG.md."""

import re

UNRELEASED = "Unreleased"


def section(changelog: str, name: str) -> str | None:
    """Returns the text below the heading `## [name]`, without surrounding blank lines; None without such a heading."""
    found = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else None


def release_notes(changelog: str, version: str, *, is_dry_run: bool) -> str:
    """Returns the notes with a heading. A dry run has the unreleased changes, if there are any. Raises ValueError, with
    the next step, if the file is not ready for a release of this version."""
    unreleased = section(changelog, UNRELEASED)
    if is_dry_run and unreleased:
        return f"# Watershed {version}, not released\n\n{unreleased}\n"
    if unreleased:
        raise ValueError(
            f"CHANGELOG.md has unreleased changes\n  next: move them below a heading ## [{version}]; if {version} is "
            "released already, below a new version's (pyproject.toml, cdc/__init__.py, Chart.yaml)"
        )
    released = section(changelog, version)
    if not released:
        raise ValueError(f"CHANGELOG.md has nothing about {version}\n  next: write a section ## [{version}]")
    return f"# Watershed {version}\n\n{released}\n"

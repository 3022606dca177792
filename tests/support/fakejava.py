"""Creates a folder that looks like a Java installation: a script that prints the version that a test chooses."""

from pathlib import Path

FULL = ("java.base", "jdk.incubator.vector", "jdk.localedata")


def fake_java(home: Path, version: str, modules: tuple[str, ...] = FULL, exit_code: int = 0) -> Path:
    """Make it in `home`, and return `home`."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    listed = "\n".join(f"{module}@{version}.0.1" for module in modules)
    settings = f"Property settings:\n    java.home = {home}\n    java.specification.version = {version}\n"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{settings}E\ncat <<'E'\n{listed}\nE\nexit {exit_code}\n")
    program.chmod(0o755)
    return home

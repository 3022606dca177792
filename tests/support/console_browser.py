"""Pages of the console in a real browser, for tests: what the browser complains about, and pictures."""

import base64
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.support.browser import violations
from tests.support.console_pipeline import ShownPipeline, served
from tests.support.http_server import HttpServer
from watershed.http.routes import Routed

expect.set_options(timeout=60_000)  # how long an expectation may take on a busy machine; the default is 5 s

PICTURE_BYTES_MAX = 150_000
PICTURES = os.environ.get("WATERSHED_PICTURES", "")


class Console:
    """A page of the console, and whatever the browser complained about."""

    def __init__(self, page: Page, server: HttpServer) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, section: str) -> Page:
        self.page.goto(f"http://127.0.0.1:{self.server.port}/console/#/{section}")
        expect(self.page.locator("#view section").first).to_be_visible()
        return self.page

    def require_sound(self) -> None:
        assert violations(self.page) == []
        assert self.complaints == []


class Opener:
    """Opens consoles of pipelines; closes them at the end of the test."""

    def __init__(self, browser: Browser, closing: ExitStack) -> None:
        self._browser = browser
        self._closing = closing

    def of(self, pipeline: ShownPipeline, parts: Sequence[Routed] = (), **options: Any) -> Console:
        return self.at(self._closing.enter_context(served(pipeline, parts=parts)), **options)

    def at(self, server: HttpServer, width: int = 1280, height: int = 800, **options: Any) -> Console:
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, locale="en-GB", reduced_motion="reduce", **options
        )
        self._closing.callback(context.close)
        context.set_default_timeout(60_000)
        return Console(context.new_page(), server)


def picture(page: Page, folder: Path, name: str) -> None:
    """Takes a picture of the whole page, as WebP, which has a quarter of the bytes of PNG."""
    page.evaluate("scrollTo(0, 0)")  # otherwise the header is where the page was scrolled to
    size = page.evaluate("({width: innerWidth, height: Math.min(1600, document.documentElement.scrollHeight)})")
    browser = page.context.new_cdp_session(page)
    clip = {"x": 0, "y": 0, "scale": 1, **size}
    options = {"format": "webp", "quality": 88, "captureBeyondViewport": True, "clip": clip}
    taken = base64.b64decode(browser.send("Page.captureScreenshot", options)["data"])
    assert 10_000 < len(taken) < PICTURE_BYTES_MAX
    path = (Path(PICTURES) if PICTURES else folder) / f"console-{name}.webp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(taken)

"""The console's files: complete, without anything from elsewhere, and protected by their headers."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from docs.build import glossary
from tests.support.console_pipeline import ShownPipeline, served
from watershed.http.routes import FOLDER, POLICY

FILES = sorted(path.name for path in FOLDER.iterdir())
BYTES_MAX = 200_000


@pytest.mark.parametrize("path", ["/", "/console", "/console/"])
def test_each_address_leads_to_the_page(path: str) -> None:
    with served(ShownPipeline()) as server:
        code, body = server.get(path)
        assert (code, "<title>Watershed</title>" in body) == (200, True)
        assert server.get("/console/none.js")[0] == 404
        assert server.get("/console/../routes.py")[0] == 404


def test_every_file_is_served_with_the_policy_and_asked_for_by_its_etag() -> None:
    with served(ShownPipeline()) as server:
        for name in FILES:
            address = f"http://127.0.0.1:{server.port}/console/{name}"
            with urllib.request.urlopen(address) as answer:
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                tag = answer.headers["ETag"]
            asked = urllib.request.Request(address, headers={"If-None-Match": tag})
            with pytest.raises(urllib.error.HTTPError) as unchanged, urllib.request.urlopen(asked):  # noqa: S310
                pass
            assert unchanged.value.code == 304


@pytest.mark.parametrize("name", FILES)
def test_files_need_nothing_from_elsewhere_and_make_no_markup_of_text(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"']+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the namespace of SVG is a name"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    if name.endswith(".html"):
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script>", text)
        assert all((FOLDER / found).exists() for found in re.findall(r'(?:src|href)="([\w.]+)"', text))
    for found in re.findall(r'from "\./([\w.]+)"', text):
        assert (FOLDER / found).exists()


def test_the_console_is_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in FILES) < BYTES_MAX


def test_the_console_explains_words_as_the_glossary_does() -> None:
    assert glossary.FILE.read_text(encoding="utf-8") == glossary.glossary_json(), "python -m docs.build.refresh"
    words = [word for word, _ in json.loads(glossary.glossary_json())]
    terms = {
        found
        for path in FOLDER.glob("*.js")
        for found in re.findall(r'\bterm\("([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(terms) > 5
    assert terms <= set(words)


def test_the_wheel_has_the_console() -> None:
    project = Path(__file__).parents[4] / "pyproject.toml"
    assert '"watershed.http" = ["console/*"]' in project.read_text(encoding="utf-8")

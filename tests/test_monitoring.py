"""The dashboard and the alert rules that are shipped: each metric that they name is one that a scrape has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.status_facts import full_status
from watershed.cli.main import COMMANDS
from watershed.http.metrics import metrics_text

FOLDER = Path(__file__).parents[1] / "deploy" / "docker" / "monitoring"
# Words of PromQL, and labels, that are no metric.
METRIC = re.compile(r"\bwatershed_\w+")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def scraped() -> dict[str, set[str]]:
    """Name of each sample → its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics_text(full_status(), is_ready=True).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_is_in_a_scrape(expression: str) -> None:
    known = scraped()
    names = METRIC.findall(expression)
    assert names
    assert set(names) <= known.keys()
    labels = {label for _, inner in re.findall(r"(by|,) \(([^)]*)\)", expression) for label in inner.split(", ")}
    labels |= set(re.findall(r"[{,](\w+)=", expression))
    assert labels <= set().union(*(known[name] for name in names))


def test_every_metric_is_in_the_reference() -> None:
    page = (FOLDER.parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert [name for name in scraped() if f"`{name.removeprefix('watershed_')}`" not in page] == []


def test_expressions_are_balanced() -> None:
    """No promtool is at hand in the packages; what a slip of an editor leaves is seen without it."""
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
        assert expression.count('"') % 2 == 0


def test_alerts_say_what_to_do_and_name_commands_that_exist() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        for command in re.findall(r"cdc (\w+)", rule["annotations"]["description"]):
            assert command in COMMANDS


def test_panels_have_a_place_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells

"""The JSON Schema takes what the loader takes, and refuses mistyped keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from cdc.config.config_file import config_schema
from tests.unit.cdc.config.test_config_file import minimal

EXAMPLE = Path(__file__).parents[4] / "deploy/watershed.example.yml"


def complaints(content: dict[str, Any]) -> list[str]:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    return [error.message for error in Draft202012Validator(schema).iter_errors(content)]


def test_the_example_and_three_lines_fit() -> None:
    assert complaints(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))) == []
    assert complaints(minimal() | {"sinks": {"search": {"url": "http://s"}}}) == []
    assert complaints(minimal() | {"sinks": {"mine": {"type": "sql", "url": "sqlite:////a.db"}}}) == []
    assert complaints(minimal() | {"format": {"decimal.handling.mode": "string"}}) == []


@pytest.mark.parametrize(
    "sinks",
    [
        {"users": {"url": "redis://c"}},
        {"users": {"type": "disk", "url": "redis://c"}},
        {"search": {"url": "http://s", "index": "x"}},
        {"search": {"url": "http://s", "mapping": {"public.orders": {"were": "a"}}}},
        {"sql": {"url": "sqlite:////a.db", "shapes": {"public.orders": {"types": {"a": "int; DROP TABLE b"}}}}},
    ],
)
def test_what_the_loader_refuses_does_not_fit(sinks: dict[str, Any]) -> None:
    assert complaints(minimal() | {"sinks": sinks}) != []

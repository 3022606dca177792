"""Payloads and the schemas of their types."""

import json

import pytest

from cdc.model.errors import ConfigError
from cdc.outbox.contracts import contract_of

PLACED = {
    "type": "object",
    "required": ["order", "lines"],
    "properties": {"lines": {"type": "array", "items": {"properties": {"count": {"minimum": 1}}}}},
}
CONTRACT = contract_of({"OrderPlaced": json.dumps(PLACED)})


def test_what_matches_and_what_has_no_contract_passes() -> None:
    assert CONTRACT("OrderPlaced", '{"order": 1, "lines": [{"count": 1}]}') is None
    assert CONTRACT("Another", "anything") is None


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("{}", "required is not met at /"),
        ('{"order": 1, "lines": [{"count": 1}, {"count": -4711}]}', "minimum is not met at /lines/1/count"),
        ("not JSON", "the payload is not JSON"),
        (None, "type is not met at /"),
        ("[" * 100_000, "the payload is not JSON"),
    ],
)
def test_what_does_not_match_has_a_reason_without_its_values(payload: str | None, message: str) -> None:
    assert CONTRACT("OrderPlaced", payload) == message


def test_nothing_is_fetched_for_a_schema() -> None:
    contract = contract_of({"T": '{"$ref": "https://schemas.example/t.json"}'})
    assert contract("T", "{}") == "the contract refers to a schema that is not in its file"


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "nothing"}'])
def test_what_is_no_schema_is_refused_with_its_type(text: str) -> None:
    with pytest.raises(ConfigError, match="OrderPlaced"):
        contract_of({"OrderPlaced": text})

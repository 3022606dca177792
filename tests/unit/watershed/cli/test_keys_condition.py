"""Rows named by their keys, in SQL."""

from dataclasses import replace

import pytest

from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from watershed.cli.keys_condition import KEYS_MAX, keys_condition


def test_keys_are_quoted() -> None:
    assert (
        keys_condition(CUSTOMERS.schema, [{"id": 1}, {"id": -(2**63)}])
        == """("id") IN ((E'1'), (E'-9223372036854775808'))"""
    )
    lines = keys_condition(ORDER_LINES.schema, [{"order_id": 1, "line_no": 2}])
    assert lines == """("order_id", "line_no") IN ((E'1', E'2'))"""
    odd = replace(LABELS.schema, key=('a"b',))
    assert keys_condition(odd, [{'a"b': "it's \\ 'x"}]) == """("a""b") IN ((E'it\\'s \\\\ \\'x'))"""


def test_keys_that_have_no_text_of_their_own_are_refused_with_what_helps() -> None:
    for name in ("photo", "tags"):
        with pytest.raises(WatershedError, match=f"key column {name} has type") as caught:
            keys_condition(replace(_arrays(), key=(name,)), [{name: "x"}])
        assert caught.value.hint.startswith("cdc snapshot start --table public.customers")
    with pytest.raises(WatershedError, match="too many for one condition"):
        keys_condition(CUSTOMERS.schema, [{"id": number} for number in range(KEYS_MAX + 1)])


def _arrays() -> TableSchema:
    columns = [replace(c, element_oid=25) if c.name == "tags" else c for c in CUSTOMERS.schema.columns]
    return replace(CUSTOMERS.schema, columns=tuple(columns))

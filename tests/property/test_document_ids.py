"""Ids of rows, for any keys."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.events import TableId
from sinks.contract import Change
from sinks.records import decode_json, encode_json
from sinks.reduction import document_id, reduce_changes

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=600) | st.sampled_from(
    ["", "sha256:", "sha256:" + "0" * 64, "[]", '["a"]', "x" * 512, "x" * 513]
)
INTEGER = st.integers(-(2**63), 2**63 - 1)
COMPOSITE = st.tuples(TEXT, INTEGER, TEXT)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@given(TEXT, TEXT)
def test_ids_of_texts_are_equal_only_for_equal_texts(left: str, right: str) -> None:
    assert (document_id({"k": left}) == document_id({"k": right})) == (left == right)


@given(COMPOSITE, COMPOSITE)
def test_ids_of_composite_keys_are_equal_only_for_equal_keys(
    left: tuple[str, int, str], right: tuple[str, int, str]
) -> None:
    names = ("a", "b", "c")
    ids = [document_id(dict(zip(names, key, strict=True))) for key in (left, right)]
    assert (ids[0] == ids[1]) == (left == right)


@given(TEXT | INTEGER | COMPOSITE.map(list))
def test_an_id_is_what_opensearch_takes(value: Any) -> None:
    assert 0 < len(document_id({"k": value}).encode()) <= 512


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans())))
def test_a_reduced_batch_is_what_a_store_would_end_with(message: list[tuple[int, int, bool]]) -> None:
    """Applying one after the other, guarded by version, and applying the reduced batch come to the same."""
    table = TableId("public", "t")
    # As in a topic, a version belongs to one key and says one thing.
    changes = [
        Change(table, {"id": key}, version * 4 + key, None if version % 3 == 0 else {"id": key, "v": version}, 1)
        for key, version, _ in message
    ]
    held: dict[int, Change] = {}
    for change in changes:
        key = change.key["id"]
        if key not in held or change.version > held[key].version:
            held[key] = change
    assert {change.key["id"]: change for change in reduce_changes(changes)} == held


@given(JSON)
def test_json_comes_back_as_it_was(value: Any) -> None:
    back = decode_json(encode_json(value))
    assert back == value
    assert encode_json(back) == encode_json(value)

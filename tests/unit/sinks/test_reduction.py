"""The newest change of each key is kept; ids are short and tell keys apart."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest

from cdc.model.events import TableId
from sinks.contract import Change
from sinks.reduction import DOCUMENT_ID_BYTES_MAX, completed, document_id, reduce_changes, with_kept

TABLE = TableId("public", "t")


def upsert(key: Any, version: int, table: TableId = TABLE) -> Change:
    return Change(table, {"id": key}, version, {"id": key}, 1)


def delete(key: Any, version: int) -> Change:
    return Change(TABLE, {"id": key}, version, None, 1)


def tombstone(key: Any, version: int) -> Change:
    return Change(TABLE, {"id": key}, version, None, None)


def test_the_highest_version_of_a_key_is_kept_in_any_order() -> None:
    changes = [upsert(1, 5), delete(1, 6), tombstone(1, 6), upsert(1, 9)]
    for order in permutations(changes):
        assert reduce_changes(order) == [changes[3]]


def test_a_delete_is_kept_before_its_tombstone_in_any_order() -> None:
    changes = [upsert(1, 5), delete(1, 6), tombstone(1, 6)]
    for order in permutations(changes):
        assert reduce_changes(order) == [changes[1]]


def test_a_tombstone_alone_deletes() -> None:
    assert reduce_changes([tombstone(1, 6), upsert(1, 5)]) == [tombstone(1, 6)]


def test_an_equal_version_is_a_replay() -> None:
    first, again = upsert(1, 5), upsert(1, 5)
    assert reduce_changes([first, again])[0] is first


def test_tables_and_keys_are_apart_and_in_order_of_appearance() -> None:
    other = TableId("public", "u")
    changes = [upsert(2, 1), upsert(1, 2), upsert(2, 3, other), upsert(2, 4)]
    assert reduce_changes(changes) == [changes[3], changes[1], changes[2]]


def page(version: int, unchanged: frozenset[str] = frozenset(), **columns: Any) -> Change:
    return Change(TABLE, {"id": 1}, version, {"id": 1, **columns}, 1, unchanged)


BIG, BOTH = frozenset({"big"}), frozenset({"big", "huge"})


def test_columns_that_the_newest_lacks_come_from_those_before_it_in_any_order() -> None:
    changes = [page(1, big="OLD", huge="H"), page(2, big="B", huge="H"), page(3, BOTH), page(5, BIG, huge="G")]
    for order in permutations(changes):
        assert reduce_changes(order) == [page(5, huge="G", big="B")]


def test_a_column_that_no_change_has_stays_out() -> None:
    changes = [page(2, BIG, huge="H"), page(3, BOTH, v="x")]
    for order in permutations(changes):
        (folded,) = reduce_changes(order)
        assert folded == page(3, BIG, v="x", huge="H")
        assert isinstance(hash(folded.unchanged), int), "a set that no one alters: stores sort changes by it"


def test_null_is_a_value_that_is_taken() -> None:
    assert reduce_changes([page(2, big=None), page(3, BIG)]) == [page(3, big=None)]


def test_nothing_is_taken_from_a_former_life() -> None:
    """Nothing whole is known of the row; what a store holds under the key is another row, and goes."""
    changes = [page(1, big="FORMER"), delete(1, 2), tombstone(1, 2), page(4, BIG)]
    for order in permutations(changes):
        assert reduce_changes(order) == [Change(TABLE, {"id": 1}, 4, None, 1)]


def test_a_later_whole_row_needs_nothing() -> None:
    changes = [page(1, big="B"), page(2, BIG), page(3, big="C")]
    for order in permutations(changes):
        assert reduce_changes(order) == [changes[2]]


def test_a_change_is_made_whole_with_what_a_store_holds() -> None:
    lacking = page(3, BIG, v="x")
    assert with_kept(lacking, {"id": 1, "v": "w", "big": "B"}) == page(3, v="x", big="B")
    assert with_kept(lacking, {"id": 1, "v": "w"}) is None
    assert with_kept(lacking, None) is None


def test_rows_are_looked_at_few_at_a_time_and_only_when_they_are_wanted() -> None:
    """They are large: what lacks columns lacks large ones."""
    lacks = frozenset({"text"})
    changes = [Change(TABLE, {"id": n}, 9, {"id": n}, 1, lacks if n != 1 else frozenset()) for n in range(5)]
    asked: list[list[int]] = []

    def held(wanted: Sequence[Change]) -> list[Mapping[str, Any] | None]:
        asked.append([change.key["id"] for change in wanted])
        return [None if change.key["id"] == 3 else {"id": 7, "text": "kept"} for change in wanted]

    found = completed(changes, held, 2)
    assert asked == []
    assert next(found) == (0, Change(TABLE, {"id": 0}, 9, {"id": 0, "text": "kept"}, 1))
    assert asked == [[0]]
    assert [number for number, _ in found] == [1, 2, 4], "the store holds no row to take the third's text from"
    assert asked == [[0], [2, 3], [4]]


def test_nothing_reduces_to_nothing() -> None:
    assert reduce_changes([]) == []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"id": 42}, "42"),
        ({"id": -1}, "-1"),
        ({"id": 2**70}, str(2**70)),
        ({"id": "text: with * / anything\n"}, "text: with * / anything\n"),
        ({"id": "42"}, "42"),
        ({"id": True}, "true"),
        ({"id": 1.5}, "1.5"),
        ({"id": ["a", None]}, '["a",null]'),
        ({"a": 1, "b": "x"}, '[1,"x"]'),
        ({"a": "1", "b": "x"}, '["1","x"]'),
        ({"a": "ü", "b": 'q"'}, '["ü","q\\""]'),
        ({"id": "x" * 512}, "x" * 512),
        ({"id": "ü" * 256}, "ü" * 256),
    ],
)
def test_an_id_is_the_keys_text(key: dict[str, Any], expected: str) -> None:
    assert document_id(key) == expected


# Digests from sha256sum.
@pytest.mark.parametrize(
    ("key", "digest"),
    [
        ({"id": ""}, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ({"id": "sha256:"}, "9fd714ce6f63c3b320c944b70e80a5d105fd2f3e2d30ae2fa81370e223f50d07"),
        ({"id": "x" * 513}, "35ade0090e64e74d6ad04204009c23a4e34b82bdf0f4f317fbcc5f26f9b10241"),
        ({"id": "ü" * 257}, "2af8c99ccdd8c38da1e1920a94e600700a4457cba16aa693f5903d298726d699"),
        ({"a": "x" * 600, "b": 1}, "7876384fc630ace261976ba362182065b1b1bb29a6780cb65f38e1d09b1622d2"),
    ],
)
def test_what_is_empty_too_long_or_like_a_digest_becomes_one(key: dict[str, Any], digest: str) -> None:
    name = document_id(key)
    assert name == f"sha256:{digest}"
    assert len(name.encode()) <= DOCUMENT_ID_BYTES_MAX

"""What fills a hole, in which order, and what does not. Schedules at random: tests/property/test_holes.py."""

from typing import Any

import pytest

from cdc.capture.toast_batch import OmittedChange, ToastBatch
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import FoundRows, RowsRequest, Unreadable
from tests.support.holes import OID, RELATION, U, consumed, delete, insert, published_rows, sees, update
from tests.support.wire import relation_bytes, truncate

A: dict[str, Any] = {"id": 1, "v": "a", "big": "B", "huge": None}
ZZ = "aHVnZQ=="  # b"huge"


def batch(*transactions: tuple[int, list[bytes]]) -> ToastBatch:
    return ToastBatch(consumed(*transactions))


def only(wanted: list[RowsRequest]) -> RowsRequest:
    (table,) = wanted
    return table


def asked(wanted: RowsRequest) -> tuple[tuple[str, ...], list[str]]:
    return wanted.columns, [row.key[0] for row in wanted.rows]


# ---- from the batch


def test_a_hole_takes_what_the_record_before_it_says() -> None:
    made = batch((7, [insert(1, "a", "B", None)]), (8, [update(1, "b", U, U), update(1, "c", U, "\\x00")]))
    rows = published_rows(made.ready())
    assert rows == [A, A | {"v": "b"}, A | {"v": "c", "huge": "AA=="}]
    assert made.is_done


def test_the_hole_of_a_hole_is_filled_too() -> None:
    made = batch((7, [update(1, "a", "B", U), update(1, "b", U, U)]))
    wanted = only(made.wanted())
    assert asked(wanted) == (("huge",), ["1"])
    assert made.ready() == []
    made.take(wanted, FoundRows(sees(7), ((b"\\x68756765",),)))
    assert published_rows(made.ready()) == [
        A | {"huge": ZZ, "filled!": ["huge"]},
        A | {"v": "b", "huge": ZZ, "filled!": ["huge"]},
    ]


def test_nothing_is_taken_from_a_former_life() -> None:
    """A moved row comes to a key that another one had before."""
    made = batch((7, [insert(1, "a", "OLD", None), delete(1), update(1, "b", U, U, was=2)]))
    wanted = only(made.wanted())
    assert asked(wanted) == (("big", "huge"), ["1"])
    made.take(wanted, FoundRows(sees(7), ((b"NEW", None),)))
    assert published_rows(made.ready())[-1] == {
        "id": 1,
        "v": "b",
        "big": "NEW",
        "huge": None,
        "filled!": ["big", "huge"],
    }


def test_a_moved_row_takes_its_old_keys_columns() -> None:
    made = batch((7, [insert(1, "a", "B", None), insert(2, "x", "X", None), update(3, "b", U, U, was=1)]))
    assert published_rows(made.ready())[-1] == A | {"id": 3, "v": "b"}
    assert made.is_done


def test_what_was_read_by_the_old_key_does_not_move_along() -> None:
    """It may be the large value of a row that has come to that key since."""
    made = batch((7, [update(1, "a", U, "\\x68756765")]), (8, [update(2, "b", U, U, was=1)]))
    assert asked(only(made.wanted())) == (("big",), ["1", "2"])
    made.take(only(made.wanted()), FoundRows(sees(9), ((b"ANOTHER",), (b"B",))))
    assert published_rows(made.ready()) == [
        {"id": 1, "v": "a", "big": "ANOTHER", "huge": ZZ, "filled!": ["big"]},
        None,
        None,
        {"id": 2, "v": "b", "big": "B", "huge": ZZ, "filled!": ["big"]},
    ]


def test_a_row_that_moves_twice_takes_them_along() -> None:
    made = batch((7, [insert(1, "a", "B", None), update(2, "b", U, U, was=1), update(1, "c", U, U, was=2)]))
    assert published_rows(made.ready())[-1] == A | {"v": "c"}


def test_a_row_that_moved_away_leaves_nothing_for_who_comes_after() -> None:
    made = batch((7, [insert(1, "a", "B", None), update(2, "b", U, U, was=1), update(1, "c", U, U, was=3)]))
    assert asked(only(made.wanted())) == (("big", "huge"), ["1"])


def test_truncate_ends_every_life() -> None:
    changes = [insert(1, "a", "B", None), truncate([OID]), insert(1, "b", "C", None), update(1, "c", U, U)]
    made = batch((7, changes))
    assert published_rows(made.ready())[-1] == A | {"v": "c", "big": "C"}


def test_null_is_a_value() -> None:
    made = batch((7, [insert(1, None, None, None), update(1, None, U, None)]))
    assert published_rows(made.ready())[-1] == {"id": 1, "v": None, "big": None, "huge": None}


# ---- changes that were left out


@pytest.mark.parametrize("keys", [(b'{"id":1}',), (b'{"id":9}', b'{"id":1}'), ()])
def test_nothing_is_taken_from_before_a_change_that_was_left_out(keys: tuple[bytes, ...]) -> None:
    """Seen: a row was published, then became too large and went to the dead letters, then was updated without its large
    value. The last record combined new columns with the first record's large value: a row that never was."""
    first, second, last = consumed(
        (7, [insert(1, "a", "B", None)]), (8, [insert(2, "x", "X", None)]), (9, [update(1, "c", U, U)])
    )
    made = ToastBatch([first, second, OmittedChange(first.topic, keys), last])
    assert len(made.ready()) == 2, "the marker is not produced"
    assert asked(only(made.wanted())) == (("big", "huge"), ["1"])
    made.take(only(made.wanted()), FoundRows(sees(9), ((b"NEW", b"\\x68756765"),)))
    assert published_rows(made.ready())[-1] == {"id": 1, "v": "c", "big": "NEW", "huge": ZZ, "filled!": ["big", "huge"]}
    assert made.is_done


def test_a_change_that_was_left_out_concerns_its_own_keys_only() -> None:
    first, last = consumed((7, [insert(1, "a", "B", None)]), (8, [update(1, "c", U, U)]))
    for marker in (OmittedChange(first.topic, (b'{"id":2}',)), OmittedChange("shop.public.other", ())):
        made = ToastBatch([first, marker, last])
        assert published_rows(made.ready())[-1] == A | {"v": "c"}
        assert made.is_done


def test_a_row_does_not_move_along_with_what_it_held_before_a_change_that_was_left_out() -> None:
    first, deleted, tombstone, last = consumed((7, [insert(1, "a", "B", None)]), (8, [update(2, "b", U, U, was=1)]))
    made = ToastBatch([first, OmittedChange(first.topic, (b'{"id":1}',)), deleted, tombstone, last])
    made.ready()
    assert asked(only(made.wanted())) == (("big", "huge"), ["2"])


def test_a_batch_with_a_change_left_out_and_no_holes_is_ready_as_it_is() -> None:
    (first,) = consumed((7, [insert(1, "a", "B", None)]))
    made = ToastBatch([OmittedChange(first.topic, ()), first])
    assert made.ready() == [first]
    assert made.is_done


# ---- from the table


def test_rows_are_asked_for_once_for_each_table_with_the_columns_that_some_of_them_lack() -> None:
    made = batch((7, [update(1, "a", U, None), update(2, "b", "B", U)]), (8, [update(1, "c", U, None)]))
    wanted = only(made.wanted())
    assert asked(wanted) == (("big", "huge"), ["1", "2"])
    assert [(row.since, row.xid) for row in wanted.rows] == [(7, 8), (7, 7)]
    assert asked(only(made.wanted(keys_max=1))) == (("big",), ["1"])


def test_what_is_ready_goes_out_before_what_is_not() -> None:
    made = batch((7, [insert(1, "a", "B", None), update(2, "b", U, None), insert(3, "c", "D", None)]))
    assert published_rows(made.ready()) == [A]
    assert made.ready() == []
    assert not made.is_done
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"C",),)))
    assert [row and row["id"] for row in published_rows(made.ready())] == [2, 3]
    assert made.is_done


def test_what_a_snapshot_read_that_does_not_see_the_transaction_does_not_count() -> None:
    made = batch((7, [update(1, "a", U, None)]))
    for snapshot in (sees(6), sees(9, but=[7])):
        made.take(only(made.wanted()), FoundRows(snapshot, ((b"OLD",),)))
        assert made.ready() == []
    made.take(only(made.wanted()), FoundRows(sees(9), ((b"B",),)))
    assert published_rows(made.ready()) == [A | {"filled!": ["big"]}]


def test_one_transaction_that_is_seen_fills_what_a_later_one_left() -> None:
    """The row between the two is the one that was read."""
    made = batch((7, [update(1, "a", U, None)]), (8, [update(1, "b", U, None)]))
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"B",),)))
    assert [row and row["big"] for row in published_rows(made.ready())] == ["B", "B"]


def test_a_row_that_is_gone_stays_unfilled_and_needs_nothing_more() -> None:
    made = batch((7, [update(1, "a", U, None)]))
    made.take(only(made.wanted()), FoundRows(sees(7), (None,)))
    assert published_rows(made.ready()) == [{"id": 1, "v": "a", "huge": None, "unchanged!": ["big"]}]
    assert made.unfilled == []


def test_what_was_not_read_yet_is_asked_for_again() -> None:
    made = batch((7, [update(1, "a", U, None), update(2, "b", U, None)]))
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"B",),)))
    assert published_rows(made.ready()) == [A | {"filled!": ["big"]}]
    assert asked(only(made.wanted())) == (("big",), ["2"])
    assert made.held_bytes == 0


def test_two_lives_of_a_key_that_lack_different_columns_are_both_filled() -> None:
    """While a third row keeps both waiting."""
    made = batch(
        (7, [update(3, "f", U, None)]),
        (8, [update(1, "a", U, None), delete(1), update(5, "x", U, None)]),
        (9, [update(1, "b", "LOGGED", U, was=2)]),
    )
    rows = {"3": (b"F", None), "5": (b"X", None), "1": (b"B", b"\\x68756765")}
    for columns in (("big",), ("big",), ("big", "huge")):
        wanted = only(made.wanted(keys_max=2))
        assert wanted.columns == columns
        found = tuple(rows[row.key[0]][: len(columns)] for row in wanted.rows)
        made.take(wanted, FoundRows(sees(9, but=[7]), found))
        assert made.ready() == []
    assert asked(only(made.wanted()))[1] == ["3"], "nothing else is still wanted"


def test_values_are_held_for_no_longer_than_they_are_needed() -> None:
    made = batch((7, [update(1, "a", U, None), update(2, "b", U, None), update(1, "c", U, None)]))
    made.take(only(made.wanted(keys_max=1)), FoundRows(sees(7), ((b"B" * 98,),)))
    assert made.held_bytes == 100  # with quotes
    assert len(made.ready()) == 1
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"C",),)))
    assert [row and row["big"][0] for row in published_rows(made.ready())] == ["C", "B"]
    assert made.is_done and made.held_bytes == 0


# ---- not at all


def test_a_table_that_can_not_be_read_leaves_its_rows_unfilled_and_noted() -> None:
    made = batch((7, [update(1, "a", U, None), insert(2, "b", "B", None)]))
    made.take(only(made.wanted()), Unreadable("it was dropped"))
    assert published_rows(made.ready())[0] == {"id": 1, "v": "a", "huge": None, "unchanged!": ["big"]}
    assert [(row.key, row.xid) for row in made.unfilled] == [(("1",), 7)]


def test_a_value_of_another_type_is_not_taken() -> None:
    made = batch((7, [update(1, "a", "B", U)]))
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"no bytea",),)))
    assert published_rows(made.ready()) == [{"id": 1, "v": "a", "big": "B", "unchanged!": ["huge"]}]
    assert len(made.unfilled) == 1


def test_what_is_given_up_goes_out_with_its_holes_and_with_what_is_known_of_them() -> None:
    made = batch((7, [update(1, "a", U, U), update(1, "b", "B", U), update(1, "c", U, U)]))
    assert made.give_up([row.place for row in only(made.wanted()).rows]) == {7}
    assert not made.wanted()
    assert published_rows(made.ready()) == [
        {"id": 1, "v": "a", "unchanged!": ["big", "huge"]},
        {"id": 1, "v": "b", "big": "B", "unchanged!": ["huge"]},
        {"id": 1, "v": "c", "big": "B", "unchanged!": ["huge"]},
    ]
    assert {row.key for row in made.unfilled} == {("1",)}


def test_only_what_was_asked_for_is_given_up() -> None:
    made = batch((7, [update(1, "a", U, None), update(2, "b", U, None)]))
    made.give_up([row.place for row in only(made.wanted(keys_max=1)).rows])
    assert len(made.ready()) == 1
    assert asked(only(made.wanted())) == (("big",), ["2"])


def test_the_relation_described_again_in_between_changes_nothing() -> None:
    made = batch((7, [insert(1, "a", "B", None), relation_bytes(RELATION), update(1, "b", U, None)]))
    assert published_rows(made.ready())[-1] == A | {"v": "b"}


@pytest.mark.parametrize("records", [[], [TopicRecord("t", b"k", b"v")]])
def test_a_batch_without_holes_is_ready_as_it_is(records: list[TopicRecord]) -> None:
    made = ToastBatch(records)
    assert made.wanted() == []
    assert made.ready() == records
    assert made.is_done


def test_a_row_that_is_too_large_when_it_is_filled_stays_unfilled() -> None:
    records = consumed((7, [update(1, "a", U, None), update(2, "a", U, None)]))
    made = ToastBatch(records, lambda record: len(record.value or b"") < 1_000)
    made.take(only(made.wanted()), FoundRows(sees(7), ((b"x" * 1_000,), (b"B",))))
    assert published_rows(made.ready()) == [
        {"id": 1, "v": "a", "huge": None, "unchanged!": ["big"]},
        {"id": 2, "v": "a", "big": "B", "huge": None, "filled!": ["big"]},
    ]
    assert [unfilled.key for unfilled in made.unfilled] == [("1",)]

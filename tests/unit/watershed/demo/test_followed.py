"""The followed order's statements change one row each, in any number of changes, and the changes are timed."""

from watershed.demo.charts import Spread
from watershed.demo.followed import CUSTOMER, ORDER, Freshness, Seen, change, creation


def test_the_second_line_comes_and_goes() -> None:
    lines = {1, 2}
    assert [statement.text.split(" VALUES")[0] for statement in creation()] == [
        "INSERT INTO customers",
        "INSERT INTO orders",
        "INSERT INTO order_lines",
        "INSERT INTO order_lines",
    ]
    assert creation()[1].values[:2] == (ORDER, CUSTOMER)
    for number in range(1, 12):
        order, first, second = change(number)
        assert order.values[1:] == (f"change {number}", ORDER)
        assert first.values[1:] == (ORDER, 1)
        is_deleted = second.text.startswith("DELETE")
        assert (2 in lines) is is_deleted, number
        lines ^= {2}


def test_a_change_is_readable_when_a_place_first_shows_it_or_a_later_one() -> None:
    freshness = Freshness()
    for at in (10.0, 11.0, 12.0, 13.0):
        freshness.commit(at)
    for number, at in ((0, 9.0), (1, 10.25), (1, 11.5), (3, 14.0), (0, 15.0)):
        freshness.see("cache", number, at)
    assert freshness.spread("cache") == Spread(3, 2.0, 3.0, 3.0)
    assert freshness.spread("cache", since=12.0) == Spread(1, 2.0, 2.0, 2.0)
    assert freshness.spread("search").count == 0


def test_changes_that_a_new_store_gets_with_the_order_are_not_timed() -> None:
    freshness = Freshness()
    freshness.commit(10.0)
    freshness.commit(11.0)
    freshness.see("warehouse", 1, 30.0)
    assert freshness.spread("warehouse") == Spread()
    freshness.see("warehouse", 2, 31.0)
    assert freshness.spread("warehouse") == Spread(1, 20.0, 20.0, 20.0)


def test_a_note_that_somebody_else_wrote_is_no_change() -> None:
    assert [Seen("new", note).number for note in ("change 12", "changed by hand", "")] == [12, 0, 0]

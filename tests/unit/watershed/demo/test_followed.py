"""The followed order's statements change one row each, in any number of changes; only its own records are read."""

from watershed.demo.followed import CUSTOMER, ORDER, _is_ours, change, creation


def test_the_second_line_comes_and_goes() -> None:
    lines = {1, 2}
    assert [statement.text.split(" (")[0] for statement in creation()] == [
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


def test_a_record_of_another_order_is_passed_over() -> None:
    assert _is_ours(f'{{"id":{ORDER}}}'.encode())
    assert not _is_ours(f'{{"id":{ORDER}1}}'.encode())
    assert not _is_ours(b'{"id":7}')

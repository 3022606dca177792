"""Tables on terminals of any width."""

import io

import pytest
from rich.console import Console

from watershed.status.listing import Listing


def shown(listing: Listing, width: int) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(listing)
    return output.getvalue()


def tables() -> Listing:
    listing = Listing("table", "rows", "state", texts=["why", "next"])
    listing.add_row("public.orders", "1,200", "captured", "", "")
    listing.add_row("public.[b]", 7, "stopped", "a key column is missing", "undo the change, or remove the table")
    return listing


def test_columns_stand_below_each_other_where_there_is_room() -> None:
    assert shown(tables(), 100) == (
        "table           rows  state     why                      next\n"
        "public.orders  1,200  captured\n"
        "public.[b]         7  stopped   a key column is missing  undo the change, or remove the table\n"
    )


def test_sentences_stand_below_their_row_where_there_is_less() -> None:
    assert shown(tables(), 50) == (
        "table           rows  state\n"
        "public.orders  1,200  captured\n"
        "public.[b]         7  stopped\n"
        "  why: a key column is missing\n"
        "  next: undo the change, or remove the table\n"
    )


def test_a_row_becomes_a_paragraph_where_its_columns_do_not_fit() -> None:
    assert shown(tables(), 28) == (
        "public.orders\n"
        "  rows 1,200, state captured\n"
        "public.[b]\n"
        "  rows 7, state stopped\n"
        "  why: a key column is\n"
        "  missing\n"
        "  next: undo the change, or\n"
        "  remove the table\n"
    )


def test_a_column_of_sentences_that_is_empty_has_no_heading() -> None:
    listing = Listing("table", texts=["why"])
    listing.add_row("a.b", "")
    assert shown(listing, 80) == "table\na.b\n"


def test_a_sentence_of_several_lines_stands_below() -> None:
    listing = Listing("view", texts=["error"])
    listing.add_row("orders", "it failed\nnext: start it")
    assert shown(listing, 80) == "view\norders\n  error: it failed\n  next: start it\n"


@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    listing = Listing("server", "address", "pid", texts=["note"])
    address = "redis://127.0.0.1:20001/0/with/a/path/that/is/longer/than/any/terminal/of/eighty/columns/ever/was"
    listing.add_row("redis", address, 12345, "")
    listing.add_row("ユーザー", "", "", "wide characters count twice")
    text = shown(listing, width)
    assert address in text.replace("\n", "").replace(" ", "")
    assert "12345" in text
    assert "ユーザー" in text


def test_a_table_without_rows_is_its_heading() -> None:
    assert shown(Listing("a", "b", texts=["c"]), 80) == "a  b\n"

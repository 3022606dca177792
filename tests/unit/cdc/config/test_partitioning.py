"""Partitions and sorts as the configuration writes them."""

import pytest

from cdc.config.partitioning import Sort, Transform, parse_sort, parse_transform


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        ("country", Transform("identity", "country")),
        ("day", Transform("identity", "day")),
        (" hour ( at ) ", Transform("hour", "at")),
        ("bucket(16, id)", Transform("bucket", "id", 16)),
        ('truncate(4,"na me")', Transform("truncate", "na me", 4)),
        ("year(größe)", Transform("year", "größe")),
    ],
)
def test_transforms(text: str, transform: Transform) -> None:
    assert parse_transform(text) == transform


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("week(at)", "is not a partition"),
        ("bucket(id)", "take a number before"),
        ("day(3, at)", "take a number before"),
        ("bucket(0, id)", "lies between 1 and"),
        ("day(at", "is not a partition"),
        ("", "is not a partition"),
        ("a; DROP", "is not a partition"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_transform(text)


def test_sorts() -> None:
    assert parse_sort("at") == parse_sort("at ASC") == Sort("at", is_descending=False)
    assert parse_sort('"a b" desc') == Sort("a b", is_descending=True)
    with pytest.raises(ValueError, match="is not a sort order"):
        parse_sort("at downwards")

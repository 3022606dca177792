"""Numbers of keys, in comparison with a dictionary of tuples."""

import random

import pyarrow as pa
import pytest

from sinks.warehouse.key_numbers import KeyNumbers


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_equal_keys_have_equal_numbers_and_others_none(width: int, seed: int) -> None:
    random_ = random.Random(f"{width} {seed}")
    kinds = [random_.choice(["int", "text"]) for _ in range(width)]

    def rows(count: int) -> list[tuple[int | str, ...]]:
        numbers = [[random_.randrange(-3, 4) for _ in kinds] for _ in range(count)]
        return [tuple(n if kind == "int" else f"é{n}" for kind, n in zip(kinds, row, strict=True)) for row in numbers]

    def columns(rows: list[tuple[int | str, ...]]) -> list[pa.Array]:
        listed = zip(*rows, strict=True)
        return [pa.array(c, pa.int64() if k == "int" else pa.string()) for k, c in zip(kinds, listed, strict=True)]

    batch, others = rows(60), rows(60)
    expected: dict[tuple[int | str, ...], int] = {}
    for row in batch:
        expected.setdefault(row, len(expected))
    numbers = KeyNumbers(columns(batch))
    assert numbers.count == len(expected)
    assert numbers.of_rows.to_pylist() == [expected[row] for row in batch]
    assert numbers.find(columns(others)).to_pylist() == [expected.get(row) for row in others]
    chunked = [pa.chunked_array([column[:20], column[20:]]) for column in columns(others)]
    assert numbers.find(chunked).to_pylist() == [expected.get(row) for row in others]


def test_a_missing_value_is_no_key() -> None:
    numbers = KeyNumbers([pa.array([1, 2]), pa.array(["a", "b"])])
    assert numbers.find([pa.array([1, None]), pa.array([None, "b"])]).to_pylist() == [None, None]

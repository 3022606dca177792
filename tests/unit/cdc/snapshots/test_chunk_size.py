"""Chunk sizes follow time and bytes."""

from cdc.snapshots.chunk_size import ROWS_FIRST, TARGET_S, WAIT_S, ChunkSize


def test_the_first_chunk_fits_the_bytes_where_the_width_is_known() -> None:
    assert ChunkSize(10_000, 1 << 20, row_bytes=0).rows == ROWS_FIRST
    assert ChunkSize(10_000, 1 << 20, row_bytes=1 << 18).rows == 4
    assert ChunkSize(10_000, 1 << 20, row_bytes=1 << 30).rows == 1
    assert ChunkSize(50, 1 << 20, row_bytes=1).rows == 50


def test_quick_chunks_grow_twofold_up_to_the_limit() -> None:
    size = ChunkSize(3_000, 1 << 30, row_bytes=0)
    rows = []
    for _ in range(3):
        size.took(size.rows, size.rows * 10, 0.001, 0.0)
        rows.append(size.rows)
    assert rows == [2_000, 3_000, 3_000]


def test_slow_chunks_shrink_to_the_time_and_wide_ones_to_the_bytes() -> None:
    slow = ChunkSize(10_000, 1 << 30, row_bytes=0)
    slow.took(1_000, 1_000, TARGET_S * 10, 0.0)
    assert slow.rows == 100
    wide = ChunkSize(10_000, 1_000_000, row_bytes=0)
    wide.took(1_000, 50_000_000, 0.1, 0.0)
    assert wide.rows == 10


def test_chunks_that_wait_for_their_merge_shrink() -> None:
    size = ChunkSize(10_000, 1 << 30, row_bytes=0)
    size.took(1_000, 1_000, 0.001, WAIT_S * 20)
    assert size.rows == 50


def test_an_empty_chunk_says_nothing_and_one_row_is_the_least() -> None:
    size = ChunkSize(10_000, 1_000, row_bytes=0)
    size.took(0, 0, 5.0, 0.0)
    assert size.rows == ROWS_FIRST
    size.took(1, 1 << 40, 5.0, 0.0)
    assert size.rows == 1

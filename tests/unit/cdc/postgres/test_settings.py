"""Which settings of a server allow capture."""

import pytest

from cdc.postgres.source import allows_decoding


@pytest.mark.parametrize(
    ("wal_level", "version", "allows"),
    [
        ("logical", 150_000, True),
        ("replica", 180_004, False),
        ("replica", 190_000, True),
        ("minimal", 190_000, False),
        ("logical", 190_000, True),
    ],
)
def test_wal_level(wal_level: str, version: int, allows: bool) -> None:
    assert allows_decoding(wal_level, version) is allows

"""The version of a record of a table's topic, where other programs may have written, too."""

import pytest

from cdc.model.events import pack_version
from watershed.verify.topic_versions import version_of


def test_a_record_and_a_tombstone_have_a_version() -> None:
    version = pack_version(3, 17)
    assert version_of(b'{"source": {"epoch": 3, "seq": 17}}', []) == version
    assert version_of(None, [("watershed.version", str(version).encode())]) == version


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe",
        b"no JSON",
        b"[]",
        b"null",
        b'{"source": null}',
        b'{"source": {}}',
        b'{"source": {"epoch": "x", "seq": 1}}',
    ],
)
def test_a_record_of_another_program_has_none(value: bytes) -> None:
    assert version_of(value, []) is None


@pytest.mark.parametrize("headers", [[], [("watershed.version", b"x")], [("watershed.version", None)]])
def test_a_tombstone_of_another_program_has_none(headers: list[tuple[str, bytes | None]]) -> None:
    assert version_of(None, headers) is None

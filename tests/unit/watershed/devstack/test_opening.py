"""Which kind of stack is opened."""

from pathlib import Path

import pytest

from cdc.model.errors import StackError
from watershed.devstack.docker import DockerStack
from watershed.devstack.opening import open_stack
from watershed.devstack.stack import Stack


@pytest.mark.parametrize(("kind", "expected"), [(None, Stack), ("native", Stack), ("docker", DockerStack)])
def test_the_environment_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, expected: type
) -> None:
    if kind is None:
        monkeypatch.delenv("WATERSHED_STACK", raising=False)
    else:
        monkeypatch.setenv("WATERSHED_STACK", kind)
    with open_stack(tmp_path, given={"redis": "somewhere"}) as servers:
        assert type(servers) is expected
        assert servers.start("redis").redis_url == "somewhere"


def test_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERSHED_STACK", "dcoker")
    with pytest.raises(StackError, match="WATERSHED_STACK is 'dcoker'"), open_stack(tmp_path):
        pass

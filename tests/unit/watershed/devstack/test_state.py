"""What a stack remembers."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from watershed.devstack.processes import Process
from watershed.devstack.state import STATE_FILE, StackState, new_state, read_state, take_lock


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = StackState("id", {"kafka": {"kafka": 1, "controller": 2}}, {"kafka": Process(7, "boot/8")}, 18)
    state.write(tmp_path)
    assert read_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_a_folder_without_state_has_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": "x", "ports": {}, "servers": {"redis": 7}}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(StackError, match=r"stack\.json can't be read"):
        read_state(tmp_path)


def test_an_identity_is_a_cluster_id_that_kafka_takes() -> None:
    identities = [new_state().identity for _ in range(500)]
    assert len(set(identities)) == 500
    assert all(len(base64.urlsafe_b64decode(identity + "==")) == 16 for identity in identities)
    assert not any(identity.startswith("-") for identity in identities)  # it would be read as an option


def test_a_folder_has_one_owner_who_is_named(tmp_path: Path) -> None:
    lock = take_lock(tmp_path)
    with pytest.raises(StackError, match=f"process {os.getpid()} is using the stack"):
        take_lock(tmp_path, 0.1)
    lock.release()
    take_lock(tmp_path, 0.1).release()


def test_a_process_that_has_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    lock = take_lock(tmp_path)
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=[lock.descriptor]) as process:
        lock.release()
        with pytest.raises(StackError, match="is using the stack"):
            take_lock(tmp_path, 0.1)
        process.communicate(b"\n")
    take_lock(tmp_path, 5).release()

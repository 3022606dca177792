"""The search for a Java, among fake ones."""

from pathlib import Path

import pytest

from cdc.model.errors import StackError
from spark_jobs.jars.java import ask, candidates, install_command, parse_answer, spark_java
from tests.support.fakejava import fake_java


def script(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_java_tells_its_version_and_modules(tmp_path: Path) -> None:
    java = ask(fake_java(tmp_path / "j", "17"))
    assert java
    assert (java.major, java.suits_spark) == (17, True)
    assert "jdk.incubator.vector" in java.modules


def test_what_can_not_be_run_is_no_java(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    assert ask(tmp_path) is None


@pytest.mark.parametrize(("text", "major"), [("1.8", 8), ("11", 11), ("25", 25)])
def test_versions_are_read_in_both_ways_of_writing_them(text: str, major: int) -> None:
    java = parse_answer(Path("/j"), f"  java.specification.version = {text}\njava.base@{text}\n")
    assert java
    assert java.major == major


@pytest.mark.parametrize("text", ["", "Error: could not find libjli.so", "java.specification.version = x"])
def test_an_answer_without_a_version_is_none(text: str) -> None:
    assert parse_answer(Path("/j"), text) is None


def test_java_home_goes_before_path_and_path_before_the_usual_folders(tmp_path: Path) -> None:
    chosen, on_path, usual = (fake_java(tmp_path / name, "17") for name in ("chosen", "path", "system/usual"))
    environ = {"JAVA_HOME": str(chosen), "PATH": str(on_path / "bin")}
    assert candidates(environ, [tmp_path / "system", tmp_path / "missing"]) == [chosen, on_path, usual]


def test_a_java_that_two_names_lead_to_is_asked_once(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "system" / "java-17", "17")
    (tmp_path / "system" / "default").symlink_to(home)
    (tmp_path / "system" / "no-java-in-here").mkdir()
    assert candidates({"JAVA_HOME": str(home)}, [tmp_path / "system"]) == [home]


def test_spark_gets_the_first_that_suits_whatever_java_home_says(tmp_path: Path) -> None:
    fake_java(tmp_path / "system" / "a-runtime", "21", modules=("java.base",))
    suits = fake_java(tmp_path / "system" / "b-21", "21")
    newer = fake_java(tmp_path / "newer", "25")
    assert spark_java({"JAVA_HOME": str(newer)}, [tmp_path / "system"]) == suits


def test_where_none_suits_each_is_named_with_its_fault_and_the_command_that_helps(tmp_path: Path) -> None:
    newer = fake_java(tmp_path / "newer", "25")
    runtime = fake_java(tmp_path / "system" / "runtime", "21", modules=("java.base",))
    broken = tmp_path / "system" / "broken"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "java").touch()
    tools = script(tmp_path / "tools", "dnf").parent
    with pytest.raises(StackError) as caught:
        spark_java({"JAVA_HOME": str(newer), "PATH": str(tools)}, [tmp_path / "system"])
    assert f"{newer} (Java 25)" in caught.value.message
    assert f"{runtime} (Java 21 without the module jdk.incubator.vector)" in caught.value.message
    assert f"{broken} (does not run)" in caught.value.message
    assert "dnf install -y java-21-openjdk-headless" in caught.value.hint


def test_a_machine_without_java_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="there is no Java on this machine"):
        spark_java({}, [tmp_path])


def test_a_system_without_a_known_package_tool_gets_advice_in_words(tmp_path: Path) -> None:
    assert install_command({"PATH": str(tmp_path)}) == "install your system's package of OpenJDK 17 or 21"

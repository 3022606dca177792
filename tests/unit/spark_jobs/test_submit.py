"""What a cluster is given: the archive of our packages, and the command line of spark-submit."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_jobs.submit import ARCHIVE_NAME, main, package_archive, submit_command


def test_the_archive_has_what_a_task_imports(tmp_path: Path) -> None:
    archive = package_archive(tmp_path / "new")
    assert archive.name == ARCHIVE_NAME
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
    assert {"cdc/config/settings.py", "sinks/cache/sink.py", "spark_jobs/daemon.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests", "demo"))]
    program = "import spark_jobs.writer, spark_jobs.stores; print(spark_jobs.writer.__file__)"
    message = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert message.strip() == f"{archive}/spark_jobs/writer.py"


def test_the_users_options_come_behind_ours_and_before_the_program(tmp_path: Path) -> None:
    config, jar, archive = tmp_path / "watershed.yml", tmp_path / "a.jar", tmp_path / ARCHIVE_NAME
    extra = ["--conf", "spark.cores.max=8"]
    command = submit_command("spark://h:7077", config, ["cache", "search"], [jar], archive, extra)
    assert command[0].endswith("spark-submit")
    assert command[command.index("--master") + 1] == "spark://h:7077"
    assert command[command.index("--py-files") + 1] == str(archive)
    assert command[command.index("--jars") + 1] == str(jar)
    assert "spark.python.daemon.module=spark_jobs.daemon" in command
    program = next(number for number, word in enumerate(command) if word.endswith("submit.py"))
    assert command[program - 2 : program] == extra
    assert command[program + 1 :] == ["--config", str(config), "cache", "search"]


def test_the_driver_says_what_is_wrong_with_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(tmp_path / "none.yml"), "cache"]) == 2
    assert "none.yml" in capsys.readouterr().err

"""Images for several machines, and Spark's pods: what they name exists; the entry point starts what Spark expects."""

import json
import os
import re
import stat
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parent.parent
ENTRY_POINT: Final = ROOT / "deploy/docker/spark-on-kubernetes.sh"
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SPARK_IMAGE: Final = DOCKERFILE[DOCKERFILE.index("FROM sinks AS spark") :]


def test_each_image_is_built_for_both_machines() -> None:
    described = json.loads((ROOT / "deploy/docker/bake.json").read_text(encoding="utf-8"))
    images = described["group"]["default"]["targets"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    with_entry_points = [
        name
        for name, text in zip(stages, re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:], strict=True)
        if "ENTRYPOINT" in text
    ]
    assert images == with_entry_points
    for name in images:
        assert described["target"][name]["target"] == name
        assert described["target"][name]["inherits"] == ["image"]
    assert described["target"]["image"]["platforms"] == ["linux/amd64", "linux/arm64"]


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A folder with `tini`, which executes what it is given, and programs that print their name and arguments."""
    for name in ("java", "spark-submit", "cdc"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n', encoding="utf-8")
    (tmp_path / "tini").write_text('#!/bin/sh\nshift 2\nexec "$@"\n', encoding="utf-8")
    for file in tmp_path.iterdir():
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def started(shown: Path, *arguments: str, **variables: str) -> list[str]:
    environment = {"PATH": f"{shown}:{os.environ['PATH']}", "SPARK_HOME": "/spark", **variables}
    done = subprocess.run([ENTRY_POINT, *arguments], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.splitlines()


def test_the_driver_is_started_by_spark_submit(shown: Path) -> None:
    words = started(shown, "driver", "--class", "A B", "x.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    bound = "spark.driver.bindAddress=10.0.0.7"
    assert words == ["spark-submit", "--deploy-mode", "client", "--conf", bound, "--class", "A B", "x.py"]


def test_an_executor_gets_what_spark_tells_it(shown: Path) -> None:
    variables = {
        **{f"SPARK_JAVA_OPT_{n}": f"-Dn={n} and more" for n in range(11)},
        "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-3",
        "SPARK_CLASSPATH": "/opt/watershed/jars/*",
    }
    words = started(shown, "executor", **variables)
    assert words[:12] == ["java", *(f"-Dn={n} and more" for n in range(11))]
    assert words[12:16] == ["-Xms1024m", "-Xmx1024m", "-cp", "/spark/conf:/opt/watershed/jars/*:/spark/jars/*"]
    assert words[16] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(words[17::2], words[18::2], strict=True)) == {
        "--driver-url": "spark://driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "exec-3",
    }


def test_anything_else_is_a_command(shown: Path) -> None:
    assert started(shown, "sink", "run", "search") == ["cdc", "sink", "run", "search"]


def test_the_spark_application_names_what_the_image_has() -> None:
    text = (ROOT / "deploy/kubernetes/spark-application.yaml").read_text(encoding="utf-8")
    spec: dict[str, Any] = yaml.safe_load(text)["spec"]
    assert spec["sparkVersion"] == version("pyspark")
    packages, _, program = spec["mainApplicationFile"].removeprefix("local://").rpartition("/spark_jobs/")
    assert (ROOT / "spark_jobs" / program).is_file()
    assert f"SPARK_HOME={packages}/pyspark" in SPARK_IMAGE
    folder = spec["sparkConf"]["spark.driver.extraClassPath"].removesuffix("/*")
    assert folder == spec["sparkConf"]["spark.executor.extraClassPath"].removesuffix("/*")
    assert f"install --directory {folder} " in SPARK_IMAGE
    configured = yaml.safe_load((ROOT / "deploy/kubernetes/watershed.yml").read_text(encoding="utf-8"))["sinks"]
    assert set(spec["arguments"][2:]) == configured.keys()

"""The manifests for Kubernetes and the units of systemd: valid by schema, and they start what exists."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cdc.config.config_file import load_config
from cdc.config.http_settings import HttpConfig
from watershed.cli.exit_codes import USAGE
from watershed.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
MANIFESTS = ROOT / "deploy" / "kubernetes"
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
VERSION = "1.33"  # of Kubernetes


def documents() -> list[dict[str, Any]]:
    resources = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    files = [*resources, "secret.example.yaml"]
    return [one for name in files for one in yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8"))]


def deployments() -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in documents() if one["kind"] == "Deployment"}


@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifests_are_valid_by_kubernetes_schemas(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document | {"sepc": {}}, VERSION, strict=True)


def test_kustomize_renders_them() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the manifests are checked one by one")
    done = subprocess.run(["kubectl", "kustomize", str(MANIFESTS)], capture_output=True, text=True, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    for one in rendered:
        kubernetes_validate.validate(one, VERSION, strict=True)
    assert sorted(one["kind"] for one in rendered) == ["ConfigMap", *["Deployment"] * 3, "Namespace", "Service"]
    made = next(one for one in rendered if one["kind"] == "ConfigMap")["metadata"]["name"]
    mounted = {
        volume["configMap"]["name"]
        for one in rendered
        if one["kind"] == "Deployment"
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    assert mounted == {made}, "a changed configuration has another name, and restarts the pods"


def test_the_configuration_and_the_secret_are_whole_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = next(one for one in documents() if one["kind"] == "Secret")
    for name, value in secret["stringData"].items():
        (tmp_path / name).write_text(value, encoding="utf-8")
    monkeypatch.setenv("CDC_SECRETS", str(tmp_path))
    config = load_config(MANIFESTS / "watershed.yml")
    assert {f"sink-{name}" for name in config.sinks} == deployments().keys() - {"capture"}
    assert config.http.host == "0.0.0.0", "probes come from outside of the container"  # noqa: S104


@pytest.mark.parametrize("name", sorted(deployments()))
def test_pods_run_commands_that_exist_and_have_no_privileges(name: str) -> None:
    pod = deployments()[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    wanted = ["run"] if name == "capture" else ["sink", "run", name.removeprefix("sink-")]
    assert container["args"] == wanted
    assert wanted[0] in COMMANDS
    port = HttpConfig().port if name == "capture" else HttpConfig().sink_port
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "a server that is away is no reason to restart"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert folders.keys() == {volume["name"] for volume in pod["volumes"]}
    assert container["env"] == [{"name": "CDC_SECRETS", "value": folders["secrets"]}]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, encoding="utf-8")
    service = parser["Service"]
    _, command, *rest = service["ExecStart"].split()
    assert command in COMMANDS
    assert rest == {"watershed-capture.service": [], "watershed-views.service": ["run"]}.get(unit.name, ["run", "%i"])
    assert service["RestartPreventExitStatus"] == str(USAGE)
    assert "CDC_SECRETS=%d" in service["Environment"].split()
    assert re.fullmatch(r"(CDC__\w+):/etc/watershed/secrets/\1", service["LoadCredential"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are only parsed")
    text = unit.read_text(encoding="utf-8").replace("/opt/watershed/bin/cdc", "/bin/true")
    copied = tmp_path / unit.name
    copied.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copied)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    copied.write_text(text.replace("ProtectSystem=strict", "ProtectSytem=strict"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copied)], capture_output=True, text=True, check=False)
    assert "ProtectSytem" in done.stderr, "it finds a mistyped key"

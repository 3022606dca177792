"""The Helm chart: three sets of values are rendered, valid by schema, and start what the manifests start."""

import json
import os
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from cdc.config.config_file import load_config
from tests.test_deploy import VERSION, deployments
from watershed.cli.main import COMMANDS

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "watershed"
SETS: Final = sorted(path.stem for path in (CHART / "ci").iterdir())
# `make helm` builds it beside Python.
HELM: Final = shutil.which("helm") or shutil.which("helm", path=str(ROOT / ".venv" / "bin"))
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: `make helm` builds it with Go")


def helm(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    done = subprocess.run([HELM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


@cache
def rendered(values: str) -> tuple[dict[str, Any], ...]:
    command = ("template", "shop", str(CHART), "--namespace", "data", "--values", str(CHART / "ci" / f"{values}.yaml"))
    return tuple(one for one in yaml.safe_load_all(helm(*command).stdout) if one)


def of_kind(values: str, kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in rendered(values) if one["kind"] == kind}


def refused(*words: str) -> str:
    return helm("template", "shop", str(CHART), *words, check=False).stderr


@needs_helm
@pytest.mark.parametrize("values", SETS)
def test_what_is_rendered_is_valid(values: str) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(CHART / "ci" / f"{values}.yaml"))
    for one in rendered(values):
        if one["kind"] != "ServiceMonitor":  # of the Prometheus operator
            kubernetes_validate.validate(one, VERSION, strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered(values)]
    assert len(names) == len(set(names))


@needs_helm
@pytest.mark.parametrize("values", SETS)
def test_the_configuration_is_whole_with_the_secret(
    values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("CDC__")]:
        monkeypatch.delenv(name)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    held = {"CDC__SOURCE__DSN": "postgresql://a", "CDC__SINKS__CACHE__URL": "redis://a"}
    for secret in of_kind(values, "Secret").values():
        held = secret["stringData"]
    for name, value in held.items():
        (secrets / name).write_text(value, encoding="utf-8")
    monkeypatch.setenv("CDC_SECRETS", str(secrets))
    file = tmp_path / "watershed.yml"
    file.write_text(of_kind(values, "ConfigMap")["shop-config"]["data"]["watershed.yml"], encoding="utf-8")
    config = load_config(file)
    assert config.http.users or config.http.insecure
    for name in of_kind(values, "Service"):
        assert {name, f"{name}.data.svc.cluster.local"} <= set(config.http.names)
    for name, one in of_kind(values, "Deployment").items():
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert container["args"][0] in COMMANDS
        ports = {"run": config.http.port, "sink": config.http.sink_port, "view": config.http.view_port}
        assert container["ports"] == [{"name": "http", "containerPort": ports[container["args"][0]]}]
        if container["args"][0] == "sink":
            assert container["args"][2] in config.sinks, name


@needs_helm
def test_the_chart_starts_what_the_manifests_start() -> None:
    """The pods are the same but for names, images and the account."""
    ours = {name.removeprefix("shop-"): one for name, one in of_kind("small", "Deployment").items()}
    assert ours.keys() == deployments().keys()
    for name, one in deployments().items():
        assert comparable(ours[name]) == comparable(one), name


def comparable(deployment: dict[str, Any]) -> str:
    spec = json.loads(json.dumps(deployment["spec"]["template"]["spec"]))
    spec.pop("serviceAccountName", None)
    for container in spec["containers"]:
        del container["image"]
        container.pop("imagePullPolicy", None)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container[probe]["httpGet"].setdefault("scheme", "HTTP")
    text = json.dumps({"spec": spec, "replicas": deployment["spec"]["replicas"]}, sort_keys=True)
    return text.replace("shop-config", "watershed").replace("shop-secret", "watershed")


@needs_helm
def test_all_values_are_used() -> None:
    pods = {name: one["spec"]["template"] for name, one in of_kind("whole", "Deployment").items()}
    assert sorted(pods) == ["shop-capture", "shop-sink-own-cache", "shop-sink-search", "shop-views"]
    assert of_kind("whole", "Deployment")["shop-capture"]["spec"]["replicas"] == 2
    for pod in pods.values():
        assert pod["metadata"]["labels"]["team"] == pod["metadata"]["annotations"]["team"] == "search"
        spec = pod["spec"]
        assert spec["serviceAccountName"] == "shop" and spec["priorityClassName"] == "high"
        assert spec["tolerations"] == [{"key": "batch", "operator": "Exists"}]
        (container,) = spec["containers"]
        assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
        assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    assert pods["shop-capture"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pods["shop-capture"]["spec"]["containers"][0]["image"] == "registry.example/watershed-capture:1.2.3"
    search = pods["shop-sink-search"]["spec"]["containers"][0]
    assert search["resources"] == {"limits": {"memory": "4Gi"}}
    assert "/etc/watershed-stores" in [mount["mountPath"] for mount in search["volumeMounts"]]
    (monitor,) = of_kind("whole", "ServiceMonitor").values()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["scheme"] == "https"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["shop-views"]["metadata"]["labels"].items()
    (policy,) = of_kind("whole", "NetworkPolicy").values()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": "http"}]
    (closed,) = of_kind("sinks-only", "NetworkPolicy").values()
    assert (closed["spec"]["ingress"], closed["spec"]["policyTypes"]) == ([], ["Ingress"])
    assert list(of_kind("sinks-only", "Deployment")) == ["shop-sink-cache"]


@needs_helm
def test_a_changed_configuration_restarts_the_pods() -> None:
    def stamp(*more: str) -> str:
        command = ("template", "shop", str(CHART), "--values", str(CHART / "ci" / "small.yaml"), *more)
        found = [one for one in yaml.safe_load_all(helm(*command).stdout) if one and one["kind"] == "Deployment"]
        return str(found[0]["spec"]["template"]["metadata"]["annotations"]["watershed/config"])

    same = stamp()
    assert stamp() == same
    assert stamp("--set", "config.topics.prefix=other") != same
    assert stamp("--set", "secret.values.CDC__SOURCE__DSN=other") != same


@needs_helm
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("config.kafka.bootstrap_servers=", "config.kafka.bootstrap_servers is empty"),
        ("config.source.tables=null", "config.source.tables is empty"),
        ("config.http.users=null", "config.http.users is empty: name users"),
        ("config.http.open={metrics}", "config.http.open lacks probes"),
        ("secret.values=null", "secret.name and secret.values are empty"),
        ("sinks.warehouse.priorityClassName=x", "sinks.warehouse runs a sink that config.sinks does not have"),
        ("views.enabled=true", "views.enabled is for config.views, which is empty"),
        ("captre.replicas=1", "captre"),
        ("capture.replicas=0", "replicas"),
        ("secret.values.dsn=x", "dsn"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_reason(change: str, message: str) -> None:
    assert message in refused("--values", str(CHART / "ci" / "small.yaml"), "--set", change)


@needs_helm
def test_a_chart_without_values_says_what_it_needs() -> None:
    assert "is empty" in refused()


def test_the_chart_has_the_versions_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version


def test_values_are_those_of_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, section in values.items():
        known = schema["properties"][name].get("properties")
        if known is not None:
            assert section.keys() <= known.keys(), name

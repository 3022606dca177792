"""docker-compose.yml and what it mounts: valid by the Compose specification's schema, complete, without privileges.
Docker is not needed to check that."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from cdc.config.config_file import load_config
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, WarehouseConfig
from tests.conftest import PostgresServer, new_database
from watershed.cli.main import COMMANDS
from watershed.devstack.docker import images

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "tests" / "fixtures" / "compose-spec" / "compose-spec.json"
CONFIG = ROOT / "deploy" / "docker" / "watershed.yml"
SINKS = ("search", "cache", "warehouse", "sql")
OURS = ("capture", *(f"sink-{name}" for name in SINKS))
PROFILES = {
    None: {"postgres", "kafka", "capture"},
    "sinks": {"opensearch", "redis", *(f"sink-{name}" for name in SINKS)},
    "demo": {"shop"},
    "monitoring": {"prometheus", "grafana"},
}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"]
    return found


def complaints(content: Any) -> list[str]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = Draft7Validator if "draft-07" in schema["$schema"] else Draft202012Validator
    return [f"{error.json_path}: {error.message}" for error in validator(schema).iter_errors(content)]


def test_the_file_is_valid_by_the_specification() -> None:
    assert complaints(compose()) == []
    broken = compose()
    broken["services"]["capture"]["read_onyl"] = True
    assert len(complaints(broken)) == 1, "the schema finds a mistyped key"


def test_profiles_have_their_services() -> None:
    found: dict[str | None, set[str]] = {}
    for name, service in services().items():
        for profile in service.get("profiles", [None]):
            found.setdefault(profile, set()).add(name)
    assert found == PROFILES


def test_a_service_needs_only_services_that_its_profile_starts() -> None:
    for profile, members in PROFILES.items():
        started = members | PROFILES[None]
        for name in members:
            for needed, how in services()[name].get("depends_on", {}).items():
                assert needed in started, (profile, name)
                assert how == {"condition": "service_healthy"}


def test_the_containers_configuration_names_the_other_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_secrets(tmp_path)
    monkeypatch.setenv("CDC_SECRETS", str(made))
    config = load_config(CONFIG)
    search, cache, warehouse, sql = (config.sinks[name] for name in SINKS)
    assert isinstance(search, SearchConfig)
    assert isinstance(cache, CacheConfig)
    assert isinstance(warehouse, WarehouseConfig)
    assert isinstance(sql, SqlConfig)
    urls = [config.source.dsn, search.url, cache.url, sql.url]
    hosts = {re.split(r"[:/]", re.sub(r"^.*(//|@)", "", url.get_secret_value()))[0] for url in urls}
    hosts.add(config.kafka.bootstrap_servers.partition(":")[0])
    assert hosts == {"postgres", "kafka", "opensearch", "redis"} <= services().keys()
    password = (made / "postgres_password").read_text()
    assert config.source.dsn.get_secret_value() == f"postgresql://watershed:{password}@postgres:5432/watershed"
    assert sql.url.get_secret_value() == f"postgresql://watershed:{password}@postgres:5432/reports"
    kept = [warehouse.location, config.spark.checkpoint_location]
    catalog = warehouse.iceberg_catalog.address.removeprefix("jdbc:sqlite:")
    assert all(path.startswith("/var/lib/watershed/") for path in [*kept, catalog]), "in the volume"


def made_secrets(folder: Path) -> Path:
    """The files as `make up` makes them, in a folder of the test's own."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (folder / "Makefile").write_text(
        text[text.index("deploy/docker/secrets:\n") : text.index("lock: .venv")], encoding="utf-8"
    )
    (folder / "deploy" / "docker").mkdir(parents=True)
    subprocess.run(["make", "-C", str(folder), "deploy/docker/secrets"], check=True, capture_output=True)
    return folder / "deploy" / "docker" / "secrets"


def test_secrets_are_files_that_only_their_owner_can_reach(tmp_path: Path) -> None:
    found, made = compose(), made_secrets(tmp_path)
    assert {Path(secret["file"]).name for secret in found["secrets"].values()} == {path.name for path in made.iterdir()}
    assert made.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in made.iterdir()), "containers have users of their own"
    used = {name for service in found["services"].values() for name in service.get("secrets", [])}
    assert used == set(found["secrets"])
    assert "deploy/docker/secrets*" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    for name, service in found["services"].items():
        plain = [key for key in service.get("environment", {}) if re.search(r"PASSWORD(?!_+FILE)|DSN", key)]
        assert plain == [], name


def test_our_containers_run_commands_that_exist_and_have_no_privileges() -> None:
    http = load_config_of_ports()
    for name in OURS:
        service = services()[name]
        assert service["command"][0] in COMMANDS
        if name != "capture":
            assert service["command"] == ["sink", "run", name.removeprefix("sink-")]
        kind, program, option, code = service["healthcheck"]["test"]
        assert (kind, program, option) == ("CMD", "python", "-c")
        compile(code, name, "exec")
        port = http["port"] if name == "capture" else http["sink_port"]
        assert f"http://127.0.0.1:{port}/readyz" in code
        assert service["ports"][0].endswith(f":{port}")
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert any(mount.startswith("/tmp") for mount in service["tmpfs"])  # noqa: S108
        assert f"AS {service['build']['target']}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def load_config_of_ports() -> dict[str, int]:
    from cdc.config.http_settings import HttpConfig

    defaults = HttpConfig().model_dump()
    assert not {"port", "sink_port"} & yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["http"].keys()
    return defaults


def test_every_container_has_a_health_and_ports_of_this_machine_only() -> None:
    published = []
    for name, service in services().items():
        assert service["healthcheck"]["test"], name
        assert "build" in service or re.search(r":v?\d", service["image"]), "images have versions"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        published += [port.split(":")[1] for port in service.get("ports", [])]
    assert len(set(published)) == len(published)


def test_volumes_and_files_that_containers_mount_are_there() -> None:
    found = compose()
    mounts = [mount for service in found["services"].values() for mount in service.get("volumes", [])]
    sources = {mount.partition(":")[0] for mount in mounts}
    assert {source for source in sources if not source.startswith("./")} == set(found["volumes"])
    for source in sources:
        assert not source.startswith("./") or (ROOT / source).is_file(), source


def test_the_containers_are_of_the_versions_that_are_tested() -> None:
    tested = {name: image.name for name, image in images(18).items() if name in ("postgres", "kafka", "opensearch")}
    assert {name: services()[name]["image"] for name in tested} == tested


def test_prometheus_scrapes_our_containers_and_grafana_finds_the_dashboard() -> None:
    folder = ROOT / "deploy" / "docker" / "monitoring"
    scrapes = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {
        target for job in scrapes["scrape_configs"] for one in job["static_configs"] for target in one["targets"]
    }
    assert targets == {f"{name}:{services()[name]['ports'][0].rpartition(':')[2]}" for name in OURS}
    mounted = {mount.split(":")[1] for mount in services()["prometheus"]["volumes"]}
    assert set(scrapes["rule_files"]) <= mounted
    provider = yaml.safe_load((folder / "grafana-dashboards.yml").read_text(encoding="utf-8"))["providers"][0]
    dashboards = [mount.split(":")[1] for mount in services()["grafana"]["volumes"] if "dashboard.json" in mount]
    assert all(path.startswith(provider["options"]["path"]) for path in dashboards)
    assert services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in dashboards
    source = yaml.safe_load((folder / "grafana-provisioning.yml").read_text(encoding="utf-8"))["datasources"][0]
    assert source["url"] == "http://prometheus:9090"


def test_the_demo_profile_s_orders_fit_the_shop(postgres: PostgresServer) -> None:
    """The script of pgbench, with numbers in the places of its variables."""
    script = (ROOT / "deploy" / "docker" / "orders.sql").read_text(encoding="utf-8")
    numbers = dict.fromkeys(re.findall(r"^\\set (\w+)", script, re.MULTILINE), "3")
    statements = re.sub(r"^(\\set|--).*\n", "", script, flags=re.MULTILINE)
    for name, number in numbers.items():
        statements = re.sub(rf"(?<!:):{name}\b", number, statements)
    with new_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((ROOT / "watershed" / "demo" / "shop.sql").read_text(encoding="utf-8").encode())
        connection.execute(statements.encode())
        rows = connection.execute(
            "SELECT o.status::text, o.total, l.quantity, p.stock, c.email FROM orders o JOIN customers c "
            "ON c.id = o.customer_id JOIN order_lines l ON l.order_id = o.id JOIN products p ON p.id = l.product_id"
        ).fetchall()
    assert [tuple(map(str, row)) for row in rows] == [("paid", "38.70", "3", "1000", "customer3@example.org")]

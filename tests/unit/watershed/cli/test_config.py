"""`cdc config`."""

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from watershed.cli.main import application


def test_the_schema_is_printed_as_json() -> None:
    ended = CliRunner().invoke(application(["config"]), ["config", "schema"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["properties"]["sinks"]["type"] == "object"


FILE = """
source: {dsn: "postgresql://me:hunter2@db/shop", tables: [public.orders]}
kafka: {bootstrap_servers: "k:9092"}
topics: {prefix: shop}
sinks: {cache: {url: "redis://c", shapes: {"public.*": {key: "order:{id}"}}}}
"""


def shown(folder: Path, *words: str) -> str:
    file = folder / "watershed.yml"
    file.write_text(FILE, encoding="utf-8")
    ended = CliRunner().invoke(application(["config"]), ["config", "show", "--config", str(file), *words])
    assert ended.exit_code == 0, ended.output
    assert "hunter2" not in ended.output
    return ended.stdout


def test_what_is_not_a_default_is_shown_as_yaml_with_its_origin(tmp_path: Path) -> None:
    text = shown(tmp_path, "--changed")
    assert text == (
        "source:\n"
        '  dsn: "**********"  # file\n'
        '  tables: ["public.orders"]  # file\n'
        "kafka:\n"
        '  bootstrap_servers: "k:9092"  # file\n'
        "topics:\n"
        "  prefix: shop  # file\n"
        "sinks:\n"
        "  cache:\n"
        '    url: "**********"  # file\n'
        "    shapes:\n"
        '      "public.*":\n'
        '        key: "order:{id}"  # file\n'
    )


def test_the_whole_configuration_is_yaml_with_the_values_in_effect(tmp_path: Path) -> None:
    read = yaml.safe_load(shown(tmp_path))
    assert read["source"]["slot"] == "watershed"
    assert read["sinks"]["cache"]["tombstone_ttl_s"] > 0
    assert read["topics"]["replication_factor"] is None


def test_the_origins_are_there_as_json(tmp_path: Path) -> None:
    options = json.loads(shown(tmp_path, "--json"))["options"]
    assert options["topics.prefix"] == {"value": "shop", "from": "file"}
    assert options["topics.partitions"] == {"value": 4, "from": "default"}

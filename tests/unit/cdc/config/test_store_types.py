"""Types of stores come from the registry, and from packages that are installed beside ours."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cdc.config.test_config_file import minimal

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "jsonlines"


def installed(folder: Path, entries: dict[str, str]) -> None:
    """What pip leaves of the example in a folder of packages."""
    shutil.copy(EXAMPLE / "jsonlines_store.py", folder)
    described = folder / "watershed_jsonlines-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: watershed-jsonlines\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (described / "entry_points.txt").write_text(f"[watershed.stores]\n{lines}")


def run(folder: Path, program: str, sinks: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own that sees the packages of this folder."""
    config = folder / "watershed.yml"
    config.write_text(yaml.safe_dump(minimal() | {"sinks": sinks}))
    paths = f"{folder}{os.pathsep}{EXAMPLE.parents[2]}"
    return subprocess.run(
        [sys.executable, "-c", program, str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )


FILLS = """
import pickle, sys
from pathlib import Path
from cdc.config.config_file import config_schema
from cdc.config.config_file import load_config
from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change
from sinks.registry import make_sink
config = load_config(Path(sys.argv[1]))
section = pickle.loads(pickle.dumps(config.sinks["archive"]))
assert "jsonlines" in config_schema()["properties"]["sinks"]["properties"]
sink = make_sink("archive", section, "shop")
sink.begin_generation(1)
table = TableId("public", "customers")
columns = (Column("id", 20, -1, "bigint", nullable=False), Column("name", 25, -1, "text", nullable=True))
sink.prepare(TableSchema(table, 1, 1, columns, ("id",), "t"))
sink.apply([Change(table, {"id": 1}, 9, {"id": 1, "name": "secret"}, 1)])
"""
COMPARES = """
from sinks.registry import open_contents, open_slots, store_contents, store_findings
contents = open_contents("archive", section, "shop")
assert [(dict(key), *held[:2]) for key, held in contents.rows(table)] == [({"number": 1}, 9, {"number": 1})]
assert section.no_rebuild and open_slots(section, "shop") is None
assert [each.message for each in store_findings("archive", section, "shop", [])] == ["holds generation 1"]
named = store_contents("archive", section, "shop", [table], removes=False)
assert named == store_contents("archive", section, "shop", [table], removes=True)
print([Path(name).name for name in named], store_contents("archive", section, "shop", [table], removes=True))
"""
LOADS = "import sys, pathlib; from cdc.config.config_file import load_config; load_config(pathlib.Path(sys.argv[1]))"


def test_a_store_is_one_folder_and_one_line(tmp_path: Path) -> None:
    """The example's own line, its section with a mapping, what its sink writes, and the parts of other commands."""
    entries = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["watershed.stores"]
    installed(tmp_path, entries)
    archive = {
        "type": "jsonlines",
        "folder": str(tmp_path / "lines"),
        "mapping": {"*": {"rename": {"id": "number"}, "exclude": ["name"]}},
    }
    done = run(tmp_path, FILLS, {"archive": archive})
    assert done.stderr == ""
    lines = (tmp_path / "lines" / "shop" / "public.customers.jsonl").read_text()
    assert json.loads(lines) == {"key": {"number": 1}, "version": 9, "row": {"number": 1}}
    compared = run(tmp_path, FILLS + COMPARES, {"archive": archive})
    assert (compared.stdout, compared.stderr) == ("['sink.json', 'public.customers.jsonl'] []\n", "")
    assert list((tmp_path / "lines").iterdir()) == []
    wrong = run(tmp_path, LOADS, {"archive": archive | {"volume": 1}})
    assert "sinks.archive.volume: unknown key" in wrong.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "broken",
            "nowhere:Config",
            "type broken can't be used: its package says nowhere:Config, which can't be imported",
        ),
        ("other", "jsonlines_store:STORE", "which is not a StoreType whose section has the new type 'other'"),
        ("other", "jsonlines_store:JsonLinesSink", "which is not a StoreType whose section has the new type 'other'"),
    ],
)
def test_a_package_that_can_t_be_used_is_named_where_its_type_is(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    installed(tmp_path, {name: value})
    assert message in run(tmp_path, LOADS, {"mine": {"type": name}}).stderr
    assert run(tmp_path, LOADS, {"search": {"url": "http://s"}}).stderr == ""

"""`cdc check` says where a warehouse's tables will be, or which Python package is missing."""

import sys
from pathlib import Path

import pytest

from cdc.config.stores import WarehouseConfig
from cdc.model.findings import Finding
from sinks.registry import store_findings


def test_the_location_or_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = WarehouseConfig.model_validate({"catalog_uri": f"jdbc:sqlite:{tmp_path}/c.db", "location": str(tmp_path)})
    (found,) = store_findings("lake", section, "shop", [])
    assert found == Finding("store lake", "ok", f"its tables will be in {tmp_path.as_uri()}")
    monkeypatch.delitem(sys.modules, "sinks.warehouse.check")
    monkeypatch.setitem(sys.modules, "pyiceberg.exceptions", None)
    (missing,) = store_findings("lake", section, "shop", [])
    assert missing.message == "the warehouse needs the Python package pyiceberg.exceptions"
    assert missing.next == "pip install 'watershed-cdc[warehouse,spark]'"

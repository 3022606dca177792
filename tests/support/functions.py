"""Python functions for mappings, registered by a package that is not really installed."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc.config.row_functions import GROUP, row_function

MODULE = '''
import os
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from cdc.config.row_functions import RowFunction


def label(row):
    """visits says what it does."""
    visits, name = row["visits"], row["name"]
    match visits:
        case 13:
            raise ValueError(f"unlucky {name}")
        case 14:
            return {"label": "x"}
        case 15:
            return {"label": "x", "score": 1.5}
        case 16:
            time.sleep(60)
        case 17:
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass
        case 18:
            os._exit(3)
        case 19:
            return None
        case 20:
            raise SystemExit("stop")
    print("a function prints", name)
    return {"label": name and name.upper(), "score": None if visits is None else Decimal(visits) / 2}


LABEL = RowFunction(label, ("name", "visits"), {"label": "text", "score": "numeric"}, version="1")
CHANGED = RowFunction(label, ("name", "visits"), {"label": "text", "score": "numeric"}, version="2")
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entries: Mapping[str, str], module: str = MODULE) -> None:
    """Makes a package with these functions (name → module:object) known to this process, and to those that it
    starts."""
    folder.mkdir(exist_ok=True)
    (folder / "functions_of_tests.py").write_text(module)
    described = folder / "functions_of_tests-0.1.0.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: functions-of-tests\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (described / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    monkeypatch.syspath_prepend(folder)
    # Another test of this process may have imported another module of this name.
    monkeypatch.delitem(sys.modules, "functions_of_tests", raising=False)
    row_function.cache_clear()

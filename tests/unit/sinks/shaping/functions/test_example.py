"""The example of a function is one, and does what its page says."""

import re
import sys
import tomllib
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cdc.config.row_functions import GROUP, RowFunction

EXAMPLE = Path(__file__).parents[5] / "docs" / "examples" / "functions"
PAGE = EXAMPLE.parents[1] / "how-to" / "write-a-function.md"


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> RowFunction:
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    module, _, name = described["project"]["entry-points"][GROUP]["net_total"].partition(":")
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(sys.modules, module, raising=False)
    made: RowFunction = getattr(import_module(module), name)
    return made


def test_the_example_computes_net_totals(function: RowFunction) -> None:
    def returned(**order: Any) -> dict[str, Any] | None:
        return function.call(dict.fromkeys(function.reads) | order)

    assert returned(gross=Decimal("119.00"), country="DE", email="a@b.c") == {
        "net": Decimal("100.00"),
        "is_export": False,
    }
    assert returned(gross=Decimal("10.81"), country="CH") == {"net": Decimal("10.00"), "is_export": True}
    assert returned(gross=Decimal(1), country="DE", email="x@tests.example") is None
    assert returned(country="DE") == {"net": None, "is_export": None}
    with pytest.raises(KeyError, match="XX"):
        returned(gross=Decimal(1), country="XX")
    assert {*function.returns} == {"net", "is_export"}


def test_the_page_has_the_example() -> None:
    def lines(text: str) -> set[str]:
        found = (re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines())
        return {line.replace("(order: dict[str, Any]) -> dict[str, Any] | None:", "(order):") for line in found if line}

    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    written = lines(
        (EXAMPLE / "shop_functions.py").read_text(encoding="utf-8").replace(": Final = RowFunction", " = RowFunction")
    )
    assert lines(found[1]) <= written

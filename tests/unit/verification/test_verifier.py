"""Which of a table's sinks are compared."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import RefusedError
from cdc.model.events import TableId
from verification import verifier
from verification.model import Difference, Kind, TableResult
from verification.verifier import Verifier

TABLE = TableId("public", "a")
DRIFT = Difference(b'{"id":1}', Kind.MISSING, (), None)


def test_a_table_that_one_store_keeps_in_another_way_is_compared_in_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Verifier.__new__(Verifier)
    made._config = SimpleNamespace(source=None)
    made._wanted = SimpleNamespace(sample=None)
    made._read = lambda _: nullcontext()
    made._side = lambda sink, *_: sink

    def compare(side: str, result: TableResult, rows: object, *, keep: bool) -> list[Difference]:
        del rows, keep
        if side == "log":
            raise RefusedError("it is a change log", "leave it out")
        result.add(DRIFT)
        return [DRIFT]

    made._compare = compare
    monkeypatch.setattr(verifier, "VerifiedTable", lambda *_: nullcontext())
    mended: list[Any] = []
    lineage: Any = SimpleNamespace(newest=SimpleNamespace(table=TABLE))
    results = made._table(lineage, ["cache", "log", "search"], lambda _, found: mended.extend(found))
    assert [(one.sink, one.drift, one.why_not) for one in results] == [
        ("cache", 1, ""),
        ("log", 0, "it is a change log"),
        ("search", 1, ""),
    ]
    assert [(side, differences) for side, _, differences in mended] == [("cache", [DRIFT]), ("search", [DRIFT])]

"""The progress of a repair ends when the repair does."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.events import TableId
from watershed.cli.snapshot_screen import Lines
from watershed.cli.verify import _ProgressPrinter
from watershed.verify import repairing
from watershed.verify.model import DriftKind, RowDifference, TableResult
from watershed.verify.repairing import Repair
from watershed.verify.suspects import Suspects

TABLE = TableId("public", "a")


def test_every_line_of_progress_ends_with_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    difference = RowDifference(b'{"id":1}', DriftKind.FUTURE, (), 99, is_foreign=True)
    made: Any = Repair.__new__(Repair)
    made._config, made._pipeline, made._report_progress = SimpleNamespace(kafka=None), None, _ProgressPrinter(Lines())
    made._publish = lambda *_: None
    schema = SimpleNamespace(table=TABLE)
    removed: list[Any] = []
    contents = SimpleNamespace(
        remove=lambda _, rows: removed.extend(rows), orphaned_lookups=lambda _: [], remove_lookups=lambda *_: None
    )
    expected = SimpleNamespace(schema=schema, store_key=lambda key: key)
    source: Any = SimpleNamespace(schema=schema)
    side: Any = SimpleNamespace(sink="cache", contents=contents, expected=expected, source=source)

    def settle(_side: object, _pipeline: object, suspects: Suspects) -> Iterator[list[RowDifference]]:
        suspects.remove([difference.key])
        yield []

    monkeypatch.setattr(repairing, "settle", settle)
    monkeypatch.setattr(repairing, "with_stale_rows", lambda _kafka, _schema, left: left)
    result = TableResult("cache", TABLE, source_rows=4, store_rows=4)
    result.add(difference)
    made(source, [(side, result, [difference])])
    assert removed == [(b'{"id":1}', 99)]
    assert capsys.readouterr().out.splitlines() == [
        "public.a in cache: running, 0 of about 1 rows (0 %), removing",
        "public.a: done, 1 rows",
        "public.a in cache: done, 4 rows",
    ]

"""The defects that the operators' campaign puts back still have the places that they change."""

from typing import Any

import pytest

from tests.faults.operators import mutants


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_each_mutant_changes_what_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = []

    def put(owner: Any, attribute: str, by: Any) -> None:
        assert getattr(owner, attribute) is not by
        changed.append((owner, attribute))

    monkeypatch.setattr(mutants, "_put", put)
    mutants.MUTANTS[name]()
    assert changed

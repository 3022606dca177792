"""In which order a view's maintainer reads its base, writes its target and forgets, with a base and a target that only
say what was called."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from cdc.config.views import ViewConfig
from cdc.model.events import Column, TableId, pack_version
from sinks.contract import Change, Outcome, Result
from sinks.errors import SinkError
from watershed.views import maintainer
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import ViewMaintainer
from watershed.views.states import ViewState

COLUMNS = [Column("id", 20, -1, "bigint", False, "b", 20), Column("name", 25, -1, "text", True, "b", 25)]
DESCRIBED: list[list[Any]] = [["id", "bigint", 0], ["name", "text", None]]
SERVING = ViewState("print", "serving", 1, 1, DESCRIBED)
REJECTED = "nine"


class FakeBase:
    """Versions are numbers of calls; the rows of a key are drawn with the one that was drawn last."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.states: dict[str, ViewState] = {}
        self.changed: list[tuple[str, ...]] = []
        self.rows: dict[tuple[str, ...], tuple[str | None, ...]] = {}
        self.version = 10
        self.triggers = True

    def install(self) -> None: ...

    def lock(self, _: str) -> bool:
        return True

    def described(self, _: object) -> list[Column]:
        return COLUMNS

    def state(self, name: str) -> ViewState | None:
        return self.states.get(name)

    def note(self, name: str, state: ViewState) -> None:
        self.calls.append(f"note {state.state} {state.generation}")
        self.states[name] = state

    def has_triggers(self, _: object) -> bool:
        return self.triggers

    def install_triggers(self, _: object) -> None:
        self.calls.append("triggers")
        self.triggers = True

    def check_shape(self, _: object) -> None:
        self.calls.append("shape")

    def collect(self, _: object, __: object) -> int:
        self.calls.append("collect")
        return 0

    def keys(self, _: object, count: int) -> list[tuple[str, ...]]:
        return self.changed[:count]

    def versions(self, count: int = 1) -> list[int]:
        self.calls.append("versions")
        first = self.version + 1
        self.version += count
        return list(range(first, first + count))

    def rows_of(
        self, _: object, __: object, keys: Sequence[tuple[str, ...]]
    ) -> tuple[dict[tuple[str, ...], tuple[str | None, ...] | None], dict[tuple[str, ...], str]]:
        self.calls.append("rows")
        return {key: self.rows.get(key) for key in keys}, {}

    def all_rows(self, _: object) -> list[list[tuple[str | None, ...]]]:
        self.calls.append("all rows")
        return [[row] for row in self.rows.values()]

    def written(self, _: str, keys: Sequence[tuple[str, ...]], rejected: Mapping[tuple[str, ...], str]) -> None:
        self.calls.append(f"written {' '.join(key[0] for key in keys)}")
        self.rejected = dict(rejected)
        self.changed = [key for key in self.changed if key not in keys]

    def forget_error(self, _: str) -> None: ...


class FakeTarget:
    """A store with one table, which rejects one name."""

    def __init__(self, calls: list[str], generation: int | None = 1) -> None:
        self.calls = calls
        self.held = generation
        self.rows: dict[int, tuple[int, Any]] = {}
        self.while_readable: Callable[[], None] = lambda: None

    def generation(self) -> int | None:
        return self.held

    def begin_generation(self, generation: int) -> None:
        self.calls.append(f"begin {generation}")
        self.held = generation

    def prepare(self, _: object) -> None: ...

    def discard(self, _: object) -> None:
        self.calls.append("discard")
        self.rows.clear()

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        self.calls.append("apply")
        results = []
        for change in changes:
            if change.row is not None and change.row["name"] == REJECTED:
                results.append(Result(Outcome.REJECTED, "too odd"))
                continue
            if change.version > self.rows.get(change.key["id"], (0, None))[0]:
                self.rows[change.key["id"]] = (change.version, change.row and change.row["name"])
            results.append(Result(Outcome.WRITTEN))
        return results

    def sweep(self, _: object, floor: int) -> int:
        self.calls.append("sweep")
        gone = [key for key, (version, _) in self.rows.items() if version < floor]
        for key in gone:
            del self.rows[key]
        return len(gone)

    def make_readable(self, _: object) -> None:
        self.calls.append("readable")
        self.while_readable()

    def close(self) -> None:
        self.calls.append("close")

    @property
    def names(self) -> dict[int, Any]:
        return {key: name for key, (_, name) in self.rows.items() if name is not None}


class FakeGenerations:
    """Two generations side by side."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.beside: FakeTarget | None = None
        self.serves = True

    def begin(self, generation: int) -> FakeTarget:
        self.calls.append(f"beside {generation}")
        self.beside = FakeTarget(self.calls, None)
        return self.beside

    def resume(self, _: int) -> FakeTarget | None:
        return self.beside

    def serve(self, generation: int) -> None:
        if not self.serves:
            raise SinkError("a reader's transaction is open", "wait")
        self.calls.append(f"serve {generation}")


class Kept:
    """A view with its fakes."""

    def __init__(self, state: ViewState | None = SERVING, *, beside: bool = False) -> None:
        self.calls: list[str] = []
        self.base = FakeBase(self.calls)
        if state is not None:
            self.base.states["names"] = state
        self.target = FakeTarget(self.calls, None if state is None else 1)
        self.generations = FakeGenerations(self.calls) if beside else None
        target = {"type": "sql", "url": "postgresql+psycopg://u@h/d"}
        config = ViewConfig.model_validate(
            {"base": "store", "sql": "SELECT id, name FROM a", "key": ["id"], "target": target}
        )
        self.definition = _Definition("names", config)
        self.maintainer = ViewMaintainer(
            cast("ViewDefinition", self.definition),
            cast("Any", self.base),
            lambda: cast("Any", self.target),
            lambda: self.calls.append("wait"),
            generations=cast("Any", self.generations),
        )

    def change(self, number: int, name: str | None) -> None:
        key = (str(number),)
        self.base.rows.pop(key, None)
        if name is not None:
            self.base.rows[key] = (str(number), name)
        self.base.changed.append(key)


class _Definition:
    """What is used of a ViewDefinition."""

    fingerprint = "print"
    table = TableId("public", "names")

    def __init__(self, name: str, config: ViewConfig) -> None:
        self.name, self.config = name, config


def test_a_key_is_forgotten_after_its_row_is_readable() -> None:
    """And the version is drawn before the row is read: of two computations the later one wins."""
    kept = Kept()
    kept.change(1, "one")
    kept.change(2, REJECTED)
    assert kept.maintainer.step()
    assert kept.calls == ["shape", "collect", "versions", "rows", "apply", "apply", "readable", "written 1 2"]
    assert kept.target.rows[1] == (pack_version(1, 11), "one")
    assert kept.base.rejected == {("2",): "too odd"}
    assert not kept.maintainer.step()


def test_a_key_whose_row_could_not_be_made_readable_is_computed_again() -> None:
    kept = Kept()
    kept.change(1, "one")

    def fail() -> None:
        raise SinkError("the store is away", "wait")

    kept.target.while_readable = fail
    with pytest.raises(SinkError, match="away"):
        kept.maintainer.step()
    assert kept.base.changed == [("1",)]


def test_a_row_that_is_rejected_leaves_no_former_row() -> None:
    kept = Kept()
    kept.change(1, "one")
    kept.maintainer.step()
    kept.change(1, REJECTED)
    kept.maintainer.step()
    assert kept.target.rows[1] == (pack_version(1, 12), None), "with the version of the row that was rejected"


def test_a_filling_reads_after_triggers_note_changes_and_serves_after_the_sweep() -> None:
    kept = Kept(None)
    kept.target.rows = {7: (1, "left over"), 1: (1, "old")}
    kept.base.triggers = False
    kept.change(1, "one")
    kept.change(2, REJECTED)
    kept.maintainer.start()
    assert kept.calls == [
        *("begin 1", "note filling 1", "note filling 1", "wait", "triggers", "versions"),
        *("all rows", "apply", "apply", "apply", "sweep", "readable", "written 2", "note serving 1"),
    ]
    assert kept.target.names == {1: "one"}
    assert kept.base.rejected == {("2",): "too odd"}


def test_a_view_that_is_whole_is_not_filled_again_unless_its_triggers_are_gone() -> None:
    kept = Kept()
    kept.maintainer.start()
    assert kept.calls == ["note serving 1"]
    kept.base.triggers = False
    assert kept.maintainer.step()
    assert "all rows" in kept.calls
    again = Kept()
    again.base.triggers = False
    again.maintainer.start()
    assert "all rows" in again.calls


def test_a_target_that_lost_its_rows_is_noticed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    kept.target.held = None
    kept.maintainer.step()
    monkeypatch.setattr(maintainer, "TARGET_CHECK_S", 0.0)
    with pytest.raises(SinkError, match="no longer holds generation 1"):
        kept.maintainer.step()


def test_a_changed_definition_serves_when_its_generation_is_filled() -> None:
    """The former rows serve until then; a swap that fails is tried again without another filling."""
    kept = Kept(SERVING._replace(fingerprint="former"), beside=True)
    assert kept.generations is not None
    kept.change(1, "one")
    kept.generations.serves = False
    with pytest.raises(SinkError, match="transaction is open"):
        kept.maintainer.start()
    assert kept.base.states["names"] == SERVING._replace(state="filled", generation=2)
    assert kept.target.rows == {}
    kept.calls.clear()
    kept.base.changed.clear()
    kept.generations.serves = True
    assert kept.maintainer.step()
    assert kept.calls == ["shape", "collect", "serve 2", "close", "note serving 2"]
    assert kept.base.states["names"] == SERVING._replace(generation=2)


def test_a_job_continues_with_a_generation_that_is_filled_already() -> None:
    kept = Kept(SERVING._replace(state="filled", generation=2), beside=True)
    assert kept.generations is not None
    kept.generations.beside = filled = FakeTarget(kept.calls, 2)
    kept.maintainer.start()
    assert kept.calls == ["close", "note filled 2"]
    kept.change(1, "one")
    assert kept.maintainer.step()
    assert (filled.names, kept.target.names) == ({1: "one"}, {})
    assert "serve 2" not in kept.calls, "not before it has been tried for a while"


@pytest.mark.parametrize(
    ("known", "held", "generation", "is_filled"),
    [
        (None, None, 1, True),
        (None, 4, 5, True),
        (SERVING, 1, 1, False),
        (SERVING, 3, 4, True),
        (SERVING, None, 2, True),
        (SERVING._replace(state="filling"), 1, 1, True),
        (SERVING._replace(fingerprint="former"), 1, 1, True),
        (SERVING._replace(columns=[]), 1, 2, True),
    ],
)
def test_the_generation_is_the_next_where_the_target_does_not_hold_what_the_base_knows(
    known: ViewState | None, held: int | None, generation: int, is_filled: bool
) -> None:
    kept = Kept(known)
    kept.target.held = held
    kept.maintainer.start()
    assert kept.base.states["names"].generation == generation
    assert ("all rows" in kept.calls) == is_filled
    assert ("discard" in kept.calls) == (known is not None and known.columns == [])
    assert kept.base.states["names"].schema_version == (2 if known is not None and known.columns == [] else 1)

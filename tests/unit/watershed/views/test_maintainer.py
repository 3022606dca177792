"""In which order a view's maintainer reads its base, writes its target and forgets, with a base and a target that only
say what was called."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cdc.config.views import ViewConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change, Outcome, Result
from sinks.errors import SinkError
from watershed.views import maintainer
from watershed.views.base import KEY_TOO_LONG, shortened
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import RowEncoder, ViewMaintainer
from watershed.views.statements import KEY_BYTES_MAX
from watershed.views.states import ViewState
from watershed.views.target import Gathering

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
        self.collected = 0
        self.is_free = True
        self.is_installed = False
        self.forgotten = 0  # how often the view's error was

    def install(self) -> None:
        self.is_installed = True

    def lock(self, _: str) -> bool:
        assert self.is_installed
        return self.is_free

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
        return self.collected

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

    def forget_error(self, _: str) -> None:
        self.forgotten += 1

    def wait(self, timeout_s: float) -> None:
        self.calls.append(f"wait {timeout_s}")


class FakeTarget:
    """A store with one table, which rejects one name."""

    def __init__(self, calls: list[str], generation: int | None = 1) -> None:
        self.calls = calls
        self.held = generation
        self.rows: dict[int, tuple[int, Any]] = {}
        self.while_readable: Callable[[], None] = lambda: None
        self.looks = 0  # at its generation
        self.prepared: list[tuple[int, int]] = []  # version and oid of each schema
        self.deletes: list[int] = []

    def generation(self) -> int | None:
        self.looks += 1
        return self.held

    def begin_generation(self, generation: int) -> None:
        self.calls.append(f"begin {generation}")
        self.held = generation

    def prepare(self, schema: TableSchema) -> None:
        self.prepared.append((schema.version, schema.oid))

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
            if change.row is None:
                self.deletes.append(change.key["id"])
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


SQL = {"type": "sql", "url": "postgresql+psycopg://u@h/d"}


class Kept:
    """A view with its fakes."""

    def __init__(
        self,
        state: ViewState | None = SERVING,
        *,
        beside: bool = False,
        is_free: bool = True,
        gathering: Gathering | None = None,
        target: Mapping[str, str] = SQL,
    ) -> None:
        self.calls: list[str] = []
        self.base = FakeBase(self.calls)
        if state is not None:
            self.base.states["names"] = state
        self.target = FakeTarget(self.calls, None if state is None else 1)
        self.generations = FakeGenerations(self.calls) if beside else None
        self.base.is_free = is_free
        config = ViewConfig.model_validate(
            {"base": "store", "sql": "SELECT id, name FROM a", "key": ["id"], "target": target}
        )
        self.definition = _Definition("names", config)
        self.maintainer = ViewMaintainer(
            cast("ViewDefinition", self.definition),
            cast("Any", self.base),
            lambda: cast("Any", self.target),
            lambda: self.calls.append("wait"),
            gathering,
            cast("Any", self.generations),
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
    assert kept.target.deletes == [2]
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


def resumed() -> tuple[Kept, FakeTarget]:
    """A job that continues with a generation that was filled beside the one that serves."""
    kept = Kept(SERVING._replace(state="filled", generation=2), beside=True)
    assert kept.generations is not None
    kept.generations.beside = filled = FakeTarget(kept.calls, 2)
    kept.maintainer.start()
    return kept, filled


def test_a_filled_generation_serves_when_there_is_nothing_to_do() -> None:
    kept, filled = resumed()
    kept.target.prepared.clear()
    assert kept.maintainer.step()
    assert kept.calls[-3:] == ["serve 2", "close", "note serving 2"]
    assert kept.base.forgotten == 1
    assert (filled.prepared, kept.target.prepared) == ([(1, 0)], [(1, 0)]), "what serves is opened again"
    kept.calls.clear()
    del kept.base.states["names"]
    kept.maintainer.step()
    assert kept.calls[:2] == ["beside 2", "close"], "of the one that serves"


def test_a_filled_generation_serves_after_a_while_even_if_it_always_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintainer, "SWAP_RETRY_S", -1.0)
    kept, filled = resumed()
    kept.change(1, "one")
    assert kept.maintainer.step()
    assert filled.names == {1: "one"}
    assert kept.calls[-4:] == ["written 1", "serve 2", "close", "note serving 2"]


@pytest.mark.parametrize(
    ("state", "held", "calls"),
    [
        (SERVING, 1, ["note serving 1"]),
        (SERVING._replace(state="filled"), 1, ["note serving 1"]),  # the swap is done, and only was not noted
        (SERVING, 3, ["beside 4", "close", "begin 4", "note filling 4"]),
        (SERVING._replace(generation=2), 1, ["beside 3", "close", "begin 3", "note filling 3"]),  # it was not filled
        (SERVING._replace(state="filled", generation=2, fingerprint="former"), 1, ["beside 3", "close", "begin 3"]),
        (SERVING._replace(columns=[]), 1, ["beside 2", "close", "begin 2", "note filling 2"]),
        (SERVING, None, ["begin 2", "note filling 2"]),
        (None, None, ["begin 1", "note filling 1"]),
    ],
)
def test_a_filling_is_beside_what_serves(state: ViewState | None, held: int | None, calls: list[str]) -> None:
    kept = Kept(state, beside=True)
    assert kept.generations is not None
    kept.target.held = held
    kept.generations.beside = FakeTarget(kept.calls, 2)
    kept.maintainer.start()
    assert kept.calls[: len(calls)] == calls
    assert "discard" not in kept.calls


def test_a_filled_generation_that_is_gone_is_filled_again() -> None:
    kept = Kept(SERVING._replace(state="filled", generation=2), beside=True)
    kept.maintainer.start()
    assert kept.calls[:3] == ["beside 3", "close", "begin 3"]


def test_a_lost_base_is_begun_beside_what_serves() -> None:
    """Whatever was filled beside it before."""
    kept = Kept(SERVING._replace(fingerprint="former"), beside=True)
    assert kept.generations is not None
    kept.generations.serves = False
    with pytest.raises(SinkError):
        kept.maintainer.start()
    del kept.base.states["names"]
    kept.calls.clear()
    kept.generations.serves = True
    kept.maintainer.step()
    assert kept.calls[:4] == ["close", "beside 2", "close", "begin 2"], "that which serves is looked at, not the other"


def test_a_step_fills_what_is_not_whole_in_its_generation() -> None:
    kept = Kept(SERVING._replace(state="filling", generation=4))
    assert kept.maintainer.step()
    assert kept.calls[0] == "note filling 4" and "note serving 4" in kept.calls
    lost = Kept(None)
    lost.change(1, "one")
    assert lost.maintainer.step()
    assert lost.base.forgotten == 1, "base and target do their work"
    assert lost.calls[:2] == ["begin 1", "note filling 1"]


def test_rows_of_other_columns_stay_in_a_cache_until_they_are_replaced() -> None:
    kept = Kept(SERVING._replace(columns=[]), target={"type": "cache", "url": "redis://h"})
    kept.maintainer.start()
    assert "discard" not in kept.calls and "begin 2" in kept.calls
    assert kept.target.prepared == [(2, 0)]


def test_a_job_continues_with_a_generation_that_is_filled_already() -> None:
    kept, filled = resumed()
    assert kept.calls == ["close", "note filled 2"]
    assert filled.prepared == [(1, 0)]
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


# ---- what is told, and when something is done


def test_another_process_that_keeps_the_view_is_left_alone() -> None:
    with pytest.raises(SinkError, match="view names: another process runs it"):
        Kept(is_free=False)


def test_a_job_waits_for_changes_and_closes_its_target() -> None:
    kept = Kept()
    kept.maintainer.wait()
    kept.maintainer.close()
    assert kept.calls == ["wait 1.0", "close"]


def test_changes_that_concern_no_key_are_something_that_was_done() -> None:
    kept = Kept()
    assert not kept.maintainer.step()
    kept.base.collected = 1
    assert kept.maintainer.step()


def test_keys_are_gathered_until_their_time() -> None:
    now = [100.0]
    kept = Kept(gathering=Gathering(2, 30.0, lambda: now[0]))
    kept.change(1, "one")
    assert kept.maintainer.step()
    kept.change(2, "two")
    assert not kept.maintainer.step()
    kept.base.collected = 1
    assert kept.maintainer.step(), "their changes were collected"
    assert kept.target.names == {1: "one"}
    now[0] += 30.0
    kept.maintainer.step()
    assert kept.target.names == {1: "one", 2: "two"}


def test_a_target_is_looked_at_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(maintainer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    kept = Kept()
    looks = []
    for seconds in (0.0, 2.0, 1.0, 2.0, 1.0):
        now[0] += seconds
        kept.maintainer.step()
        looks.append(kept.target.looks)
    assert looks == [0, 0, 1, 1, 2]


def test_a_rejected_row_is_deleted_at_its_own_version() -> None:
    kept = Kept()
    kept.target.rows[1] = (pack_version(1, 10), "former")
    kept.change(1, REJECTED)
    kept.maintainer.step()
    assert kept.target.rows[1] == (pack_version(1, 11), None)


def test_a_filling_counts_all_that_is_rejected_and_notes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintainer, "REJECTED_MAX", 2)
    kept = Kept(None)
    long = "1" * (KEY_BYTES_MAX + 1)
    kept.base.rows = {("0",): (long, "too long"), ("1",): ("1", "one")}
    kept.base.rows |= {(str(number),): (str(number), REJECTED) for number in (2, 3)}
    with capture_logs() as logs:
        kept.maintainer.start()
    assert kept.base.rejected == {shortened((long,)): KEY_TOO_LONG, ("2",): "too odd"}
    assert kept.target.names == {1: "one"} and kept.target.deletes == [2, 3]
    (filled,) = (line for line in logs if line["event"] == "view is filled")
    assert (filled["rows"], filled["rejected"]) == (4, 3)
    assert kept.base.forgotten == 1, "when the first rows were written"
    assert kept.target.prepared == [(1, 0)]


def test_rows_become_what_stores_receive() -> None:
    definition = cast("ViewDefinition", Kept().definition)
    encoder = RowEncoder(definition, COLUMNS)
    assert (encoder.schema.version, encoder.schema.oid, encoder.schema.key) == (1, 0, ("id",))
    assert encoder.key_types == ["bigint"]
    assert encoder.key_of(("7", "x")) == ("7",)
    assert encoder.key_of((None, "x")) == ("",), "no row of the view, whose key has no NULL"
    change = encoder.change(("7",), ("7", None), 5)
    assert (change.key, change.row, change.version) == ({"id": 7}, {"id": 7, "name": None}, pack_version(1, 5))
    assert encoder.change(("7",), None, 5).row is None
    encoder._encoders[1] = None
    assert encoder.change(("7",), ("7", "x"), 5).row == {"id": 7, "name": None}, "no store takes values of its type"

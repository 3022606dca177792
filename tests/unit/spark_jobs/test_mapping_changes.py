"""A changed mapping: which tables are built again, with what the others go on meanwhile, and what is said before."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.config.config_file import load_config
from cdc.config.store_mapping import StoredTables
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig
from cdc.daemon.conditions import Conditions
from cdc.model.control import ProgressRecord
from cdc.model.events import TableId
from cdc.model.job_records import MappingsRecord, RebuildRecord
from cdc.model.rejected_rows import RejectedRow
from cdc.model.sink_records import SinkRecord
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.build_plan import IN_PLACE, NOT_WRITTEN, REPLACED, UNUSABLE, UP_TO_DATE, build_plan
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.dead_letters import adopted_dead_letters
from spark_jobs.generations import former_mappings
from spark_jobs.serving import ServingThread, SinkFile
from spark_jobs.sink_thread import PipelineConnections
from spark_jobs.sinks_file import SinkConfig
from spark_jobs.starting import first_position, has_lost_writes, of_tables, parse_position, with_adopted
from tests.support.functions import install
from tests.support.sink_job import write_config
from tests.unit.spark_jobs.records import schema

A, B = TableId("public", "a"), TableId("public", "b")
HISTORIES = {table: SchemaHistory((schema(table.name),)) for table in (A, B)}
TOPICS = {str(table): history.newest.topic for table, history in HISTORIES.items()}
OFFSETS = dict.fromkeys(TOPICS.values(), (5,))
MASK = {"hash": ["id"], "hash_key": "k" * 16}
RENAMED = {"rename": {"id": "number"}}
TWICE = {"computed": {"twice": "id * 2"}}


def section(kind: type[StoreConfig] = SearchConfig, /, **mapping: Any) -> StoreConfig:
    entries = {f"public.{table}": entry for table, entry in mapping.items()}
    return kind.model_validate({"url": "http://s", "mapping": entries})


def known(*sections: StoredTables) -> dict[str, str]:
    return {one.fingerprint(): one.to_json() for each in sections for one in each.mapping.values()}


def record(of: StoredTables, **fields: Any) -> SinkRecord:
    first = first_position("search", 3, "h", [], 10**15)
    return first.model_copy(update={"end_offsets": OFFSETS, "mappings": of.fingerprints([A, B]), **fields})


# ---- the mappings that rows have


@pytest.mark.parametrize("entry", [{}, RENAMED, {"mask": MASK}, {"where": "id > 3", "as_text": ["id"]}, TWICE])
def test_rows_are_kept_up_to_date_with_the_mapping_that_they_have(entry: dict[str, Any]) -> None:
    before, now = section(a=entry), section(a={**entry, "constants": {"kind": "new"}})
    (found,) = former_mappings(now, [A], record(before), known(before)).values()
    assert found == before.mapped(A)[1]
    written = now.with_mappings({A: found})
    assert written.fingerprints([A, B]) == before.fingerprints([A, B])
    assert "k" * 16 not in "".join(known(before).values()), "the key of hashes stays in the configuration"


def test_rows_are_not_written_any_more_without_the_masks_of_now() -> None:
    for before, now in (({}, {"mask": MASK}), ({"mask": MASK}, {"mask": MASK | {"hash_key": "l" * 16}})):
        assert former_mappings(section(a=now), [A], record(section(a=before)), known(section(a=before))) == {}
    assert former_mappings(section(), [A], record(section(a=RENAMED)), {}) == {}, "it is not known"


def test_a_section_of_some_tables_holds_no_other_whatever_their_names() -> None:
    odd = [TableId("public", name) for name in ("a", "a*", "[a]", "^a$", "a.b", "aa")]
    every = SearchConfig.model_validate({"url": "http://s"})
    for table in odd:
        assert [other for other in odd if every.only([table]).holds(other)] == [table]


# ---- the position of a generation that adopts tables


def test_a_position_joins_those_of_the_built_and_of_the_adopted_tables() -> None:
    before, now = section(a=RENAMED, b=RENAMED), section(b=RENAMED)
    former = record(
        before,
        epoch=1,
        applied_lsn=70,
        commit_ts_us=7,
        applied_ts_us=50,
        job=(4, "former"),
        end_offsets={TOPICS["public.a"]: (9,), TOPICS["public.b"]: (8,)},
        sweeps={"public.a": 1, "public.b": 2},
        incarnations={TOPICS["public.a"]: "x", TOPICS["public.b"]: "y"},
        owed={"public.a": "old", "public.b": "its snapshot"},
        shown={"t": "former"},
        excluded=("public.c",),
    )
    built = record(
        now,
        generation=4,
        epoch=1,
        applied_lsn=80,
        applied_ts_us=60,
        job=(5, "built"),
        role="building",
        end_offsets={TOPICS["public.a"]: (7,), TOPICS["public.b"]: (1,)},
        sweeps={"public.a": 3},
        incarnations={TOPICS["public.a"]: "z"},
        excluded=("public.b", "public.c"),
    )
    joined = with_adopted(built, former, {"public.a": TOPICS["public.a"]}, "new")
    assert joined.end_offsets == {TOPICS["public.a"]: (7,), TOPICS["public.b"]: (8,)}
    assert joined.incarnations == {TOPICS["public.a"]: "z", TOPICS["public.b"]: "y"}
    assert joined.sweeps == {"public.a": 3, "public.b": 2}
    assert joined.mappings == now.fingerprints([A, B])
    assert joined.owed == {"public.b": "its snapshot"}
    assert (joined.epoch, joined.applied_lsn, joined.commit_ts_us, joined.shown) == (1, 70, 7, {"t": "former"})
    assert (joined.generation, joined.role, joined.excluded) == (4, "serving", ("public.c",))
    assert joined.applied_ts_us == 50, "as old as what may have missed deletes"
    assert joined.job[0] > 5 and not has_lost_writes(joined, built)
    assert with_adopted(built.model_copy(update={"applied_lsn": 60}), former, {}, "").applied_lsn == 60
    own = of_tables(joined, {"public.a": TOPICS["public.a"]})
    assert (own.end_offsets, own.incarnations) == ({TOPICS["public.a"]: (7,)}, {TOPICS["public.a"]: "z"})
    assert (own.sweeps, own.mappings, own.owed) == ({"public.a": 3}, {}, {}), "what the builder continues after a kill"


def test_dead_letters_of_adopted_tables_become_those_of_the_new_generation() -> None:
    letter = cast("RejectedRow", object())
    former = {"3/public.a/1": letter, "3/public.b/a/b": letter}
    assert adopted_dead_letters(former, 4, {A}) == {"4/public.b/a/b": letter}


# ---- what is said before


def test_what_will_be_built_and_what_readers_see_is_said_before() -> None:
    def said(before: StoreConfig, now: StoreConfig) -> tuple[list[TableId], str, int] | None:
        plan = build_plan("s", now, HISTORIES.values(), record(before), known(before))
        return None if plan is None else (list(plan.tables), plan.readers, plan.kept)

    assert said(section(), section()) is None
    assert said(section(), section(a=RENAMED)) == ([A], UP_TO_DATE, 1)
    assert said(section(), section(a={"mask": MASK})) == ([A], f"{NOT_WRITTEN}{UNUSABLE}", 1)
    assert said(section(CacheConfig), section(CacheConfig, a=RENAMED)) == ([A], IN_PLACE, 1)
    changed_expression = section(a={"computed": {"twice": "id + id"}}, b=TWICE)
    assert said(section(a=TWICE, b=TWICE), changed_expression) == ([A], UP_TO_DATE, 1)
    gone = section(a={"computed": {"twice": "number * 2"}})
    assert said(gone, section(a=TWICE)) == ([A], f"{NOT_WRITTEN}{UNUSABLE}", 1), "its column was renamed"
    assert build_plan("s", section(a=RENAMED), HISTORIES.values(), None, {}) is None, "nothing was built before"
    changed = build_plan("s", section(a=RENAMED), HISTORIES.values(), record(section()), {})
    assert changed is not None and changed.needs_space
    assert str(changed) == (
        f"builds public.a again (its mapping has changed): {UP_TO_DATE}; 1 other tables stay as they are"
    )
    included = build_plan("s", section(), HISTORIES.values(), record(section(), excluded=("public.b",)), {})
    assert included is not None and (included.tables, included.kept) == ((A, B), 0)


def test_another_version_of_a_function_is_said_to_need_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"label": "functions_of_tests:LABEL"}
    install(tmp_path / "packages", monkeypatch, names)
    before = section(a={"function": "label"})
    marks, texts = record(before), known(before)
    assert build_plan("search", before, HISTORIES.values(), marks, texts) is None
    for now in (section(a={"function": "label", "where": "id > 3"}), section(a=RENAMED)):  # a reload takes these up
        plan = build_plan("search", now, HISTORIES.values(), marks, texts)
        assert plan is not None and (plan.functions, plan.start_again) == ((), "")
    install(tmp_path / "packages", monkeypatch, {"label": "functions_of_tests:CHANGED"})
    plan = build_plan("search", before, HISTORIES.values(), marks, texts)
    assert plan is not None and plan.functions == ("label",)
    assert "when its process is started again" in str(plan)


def test_a_store_without_a_second_place_is_said_to_lack_rows() -> None:
    class Plugin(StoreConfig):
        type: str = "plugin"

    now = Plugin.model_validate({"mapping": {"public.a": RENAMED}})
    plan = build_plan("s", now, HISTORIES.values(), record(section()), {})
    assert plan is not None and (plan.readers, plan.tables, plan.needs_space) == (REPLACED, (A,), False)


# ---- the job


class Job:
    """A serving job at its start, with a store of two places."""

    def __init__(self, folder: Path, before: StoreConfig, now: StoreConfig, *, in_place: bool = False) -> None:
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"search": {"url": "http://s"}}))
        self.config = config.model_copy(update={"sinks": {"search": now}})
        self.opened: list[tuple[StoreConfig, str | None]] = []
        self.closed = 0
        self.sent: list[Any] = []
        self.positions: list[SinkRecord] = []
        self.noted: SinkRecord | None = record(before)
        self.in_place = in_place
        self.slot_generations: dict[str, int] = {"": 3}
        self.dropped: list[str] = []
        self.sinks: dict[str, SinkRecord] = {}
        self.rebuilds: dict[str, RebuildRecord] = {}
        self.mappings = {"search": MappingsRecord(sink="search", mappings=known(before))}
        self.schema_histories = dict(HISTORIES)
        self.excluded: set[TableId] = set()
        file = SinkFile(lambda: SinkConfig(0, self.config), self.opener, lambda _: None)
        stop, spark = threading.Event(), cast("Any", None)
        self.worker = ServingThread("search", self.config, spark, self.opener(self.config), stop, Conditions(), file)
        worker = cast("Any", self.worker)
        worker._checkpoints = SimpleNamespace(keep_only=lambda _: None)
        worker._begin_sync = lambda _opened, _link, start: start
        published = ProgressRecord(
            epoch=1, seq=1, lsn=1, commit_ts_us=1, published_ts_us=1, end_offsets=OFFSETS, history="h"
        )
        control = cast("Any", self)
        self.connections = PipelineConnections(control, control, cast("Any", None), ControlUpdate((published,), (), ()))

    def opener(self, config: Any) -> Callable[[str | None], Any]:
        def opened(slot: str | None) -> Any:
            self.opened.append((config.sinks["search"], slot))
            sink = SimpleNamespace(
                generation=lambda: 3,
                saved_position=lambda: None if self.noted is None else self.noted.encode().decode(),
            )
            return SimpleNamespace(sink=sink, slots=self, slot="", close=self.close)

        return opened

    def begin(self) -> SinkRecord | None:
        opened = self.worker._opened(self.connections)
        begun = self.worker._begin(opened, self.connections)
        return None if begun is None else cast("SinkRecord", begun[0])

    # of the store's slots, and of the topics

    def close(self) -> None:
        self.closed += 1

    def serving(self) -> str:
        return ""

    def generation(self, slot: str) -> int | None:
        return self.slot_generations.get(slot)

    def drop(self, slot: str) -> None:
        self.dropped.append(slot)

    def send(self, sent: Any) -> None:
        self.sent.append(sent)

    def publish(self, published: SinkRecord) -> None:
        self.positions.append(published)

    @property
    def request(self) -> RebuildRecord:
        return self.rebuilds["search"]


def test_only_the_changed_table_is_built_and_all_are_written_meanwhile(tmp_path: Path) -> None:
    before, now = section(a=RENAMED), section(a={"rename": {"id": "other"}})
    job = Job(tmp_path, before, now)
    assert job.begin() == job.noted, "it goes on where it was"
    assert [one.fingerprints([A, B]) for one, _ in job.opened] == [now.fingerprints([A]), before.fingerprints([A])]
    assert job.closed == 1, "the store that was opened first"
    assert (job.request.tables, job.request.keeps_old) == (("public.a",), False)
    assert job.mappings["search"].mappings == known(before, now), "of the rows that are there, and of those to come"
    completed = job.worker._complete(cast("Any", job), record(before))
    assert completed.mappings == before.fingerprints([A, B])


def test_a_table_with_other_masks_is_built_while_nothing_is_written(tmp_path: Path) -> None:
    job = Job(tmp_path, section(), section(a={"mask": MASK}))
    assert job.begin() is None
    assert job.request.tables == ("public.a",)
    assert [(one.generation, one.role) for one in job.positions] == []


def transactional(**mapping: Any) -> StoreConfig:
    return section(SqlConfig, **mapping).model_copy(update={"consistency": "transactional"})


@pytest.mark.promise(2)
@pytest.mark.parametrize("is_followed", [True, False])
def test_tables_at_another_position_are_not_adopted_where_all_are_at_one(tmp_path: Path, is_followed: bool) -> None:
    """Readers of a transactional sink would see the built tables at the builder's cut and the others at another one,
    far behind it if nothing was written to them meanwhile."""
    now = transactional(a=RENAMED if is_followed else {"mask": MASK})
    job = Job(tmp_path, transactional(), now)
    assert job.begin() == (job.noted if is_followed else None)
    assert job.request.tables == (), "all tables are built"
    plan = build_plan("search", now, HISTORIES.values(), record(transactional()), known(transactional()))
    assert plan is not None and (plan.tables, plan.kept) == ((A, B), 0)
    assert plan.readers == (UP_TO_DATE if is_followed else f"{NOT_WRITTEN}{UNUSABLE}")


def test_a_cache_is_written_with_the_new_mapping_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, section(), section(a=RENAMED), in_place=True)
    assert job.begin() == job.noted
    assert len(job.opened) == 1 and job.request.tables == ("public.a",)
    # Another change, before that one is done: what the position says of the first does not show that it is missing.
    job.noted = record(section(a=RENAMED))
    again = Job(tmp_path, section(a=RENAMED), section(a=RENAMED, b=RENAMED), in_place=True)
    again.rebuilds = job.rebuilds
    again.begin()
    assert again.request.tables == ("public.a", "public.b")


def test_a_second_change_is_built_with_the_first(tmp_path: Path) -> None:
    first = Job(tmp_path, section(), section(a=RENAMED))
    first.begin()
    asked = first.request
    same = Job(tmp_path, section(), section(a={"rename": {"id": "other"}}))
    same.rebuilds = {"search": asked}
    same.begin()
    assert same.request == asked, "the builder sees that its rows have another mapping"
    both = Job(tmp_path, section(), section(a=RENAMED, b=RENAMED))
    both.rebuilds = {"search": asked}
    both.begin()
    assert (both.request.tables, both.request.request != asked.request) == (("public.a", "public.b"), True)


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_build_that_was_cancelled_does_not_begin_again_because_the_store_was_away(
    tmp_path: Path, status: str
) -> None:
    job = Job(tmp_path, section(), section(a=RENAMED))
    job.begin()
    ended = job.request.model_copy(update={"status": status})
    job.rebuilds = {"search": ended}
    assert job.begin() == job.noted and job.request == ended, "the former rows are kept up to date"
    job.worker._file = SinkFile(lambda: SinkConfig(1, job.config), job.opener, lambda _: None)
    job.worker._take_up()
    job.begin()
    assert job.request.is_open, "the configuration was read again"
    again = Job(tmp_path, section(), section(a=RENAMED))
    again.rebuilds = {"search": ended}
    again.begin()
    assert again.request.is_open, "the sink was started again"


def test_a_rebuild_of_all_tables_includes_the_changed_ones(tmp_path: Path) -> None:
    job = Job(tmp_path, section(), section(a=RENAMED))
    whole = RebuildRecord(sink="search", request="r", action="rebuild", status="running", asked_us=1)
    job.rebuilds = {"search": whole}
    assert job.begin() == job.noted, "the former rows are kept up to date"
    assert job.request == whole


@pytest.mark.parametrize(
    ("generation", "tables", "is_dropped"), [(4, ["public.a"], True), (0, ["public.a"], False), (4, [], True)]
)
def test_a_mapping_that_is_the_former_one_again_ends_the_rebuild(
    tmp_path: Path, generation: int, tables: list[str], is_dropped: bool
) -> None:
    job = Job(tmp_path, section(), section())
    begun = {"sink": "search", "request": "r", "action": "rebuild", "status": "running", "asked_us": 1}
    fields = {**begun, "keeps_old": False, "tables": tables, "generation": generation}
    job.rebuilds = {"search": RebuildRecord.model_validate(fields)}
    job.begin()
    assert (job.request.status, job.dropped) == ("cancelled", ["g4"] if is_dropped else [])


def test_a_rebuild_whose_generation_serves_already_is_not_withdrawn(tmp_path: Path) -> None:
    job = Job(tmp_path, section(), section())
    begun = {"sink": "search", "request": "r", "action": "rebuild", "status": "running", "asked_us": 1}
    request = RebuildRecord.model_validate({**begun, "keeps_old": False, "tables": ["public.a"], "generation": 3})
    job.rebuilds = {"search": request}
    job.begin()
    assert (job.request, job.dropped) == (request, [])
    of_a_user = request.model_copy(update={"keeps_old": True, "tables": (), "generation": 4})
    job.rebuilds = {"search": of_a_user}
    job.begin()
    assert (job.request, job.dropped) == (of_a_user, [])


def test_a_former_mapping_that_does_not_fit_any_more_does_not_stop_the_sink(tmp_path: Path) -> None:
    before = section(a={"where": "gone = 1"})
    job = Job(tmp_path, before, section())
    job.schema_histories[A] = SchemaHistory((schema("a"),))  # the condition's column is not in it
    assert job.begin() is None, "nothing is written until the table is built"
    assert job.request.tables == ("public.a",)
    refused = RefusedError("the condition names a column", "")
    assert job.worker._is_permanent(refused), "its own mapping"
    job.worker._written_as = job.worker._section.with_mappings({A: before.mapped(A)[1]})
    assert not job.worker._is_permanent(refused)
    assert not job.worker._is_permanent(SinkError("the store is away", ""))


class Adopting:
    """A job whose generation of some tables is complete."""

    def __init__(self, folder: Path, built: SinkRecord | None) -> None:
        self.job = Job(folder, section(), section(a=RENAMED))
        self.saved: list[SinkRecord] = []
        self.letters: dict[int, dict[str, Any]] = {3: {"3/public.b/1": "b", "3/public.a/1": "a"}, 4: {}}
        building = SimpleNamespace(
            saved_position=lambda: None if built is None else built.encode().decode(), save_position=self.save
        )
        worker = cast("Any", self.job.worker)
        worker._opener = lambda _: lambda _slot: SimpleNamespace(sink=building, close=lambda: None)
        worker._open_dead_letters = self.open_letters
        self.served = SimpleNamespace(sink=SimpleNamespace(saved_position=record(section()).encode().decode))
        self.request = RebuildRecord(
            sink="search",
            request="r",
            action="rebuild",
            status="running",
            asked_us=1,
            generation=4,
            tables=("public.a",),
        )

    def save(self, text: str, before: str | None) -> None:
        assert before is None
        assert self.letters[4] == {"4/public.b/1": "b"}, "dead letters come before the position that covers them"
        parsed = parse_position(text)
        assert parsed is not None
        self.saved.append(parsed)

    def open_letters(self, generation: int) -> Any:
        letters = self.letters[generation]
        return SimpleNamespace(rows=letters, publish=letters.update, close=lambda: None)

    def adopt(self) -> None:
        self.job.worker._adopt(self.request, cast("Any", self.served), self.job.connections)


def test_a_generation_of_some_tables_gets_position_and_dead_letters_of_the_others(tmp_path: Path) -> None:
    built = record(section(a=RENAMED), generation=4, end_offsets={TOPICS["public.a"]: (2,)})
    adopting = Adopting(tmp_path, built)
    adopting.adopt()
    (saved,) = adopting.saved
    assert saved.end_offsets == {TOPICS["public.a"]: (2,), TOPICS["public.b"]: (5,)}
    assert (saved.generation, saved.mappings) == (4, section(a=RENAMED).fingerprints([A, B]))


@pytest.mark.parametrize("fields", [None, {"generation": 5}, {"generation": 4, "history": "another"}])
def test_a_generation_without_its_position_does_not_serve(tmp_path: Path, fields: dict[str, Any] | None) -> None:
    adopting = Adopting(tmp_path, None if fields is None else record(section(), **fields))
    with pytest.raises(SinkError, match="lacks the position of one of two generations"):
        adopting.adopt()
    assert adopting.saved == []


def test_a_builder_holds_only_the_tables_that_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jobs import serving

    monkeypatch.setattr(serving, "Builder", lambda *fields: fields)
    job = Job(tmp_path, section(), section(a=RENAMED))
    job.begin()
    rebuild = job.worker._rebuild_of(cast("Any", SimpleNamespace(slots=job)), job.connections)
    assert rebuild is not None
    fields: Any = rebuild._open_builder(("g4", 4), cast("Any", None), job.request)
    held = fields[1].sinks["search"]
    assert (held.holds(A), held.holds(B), held.mapped(A)[1]) == (True, False, job.worker._section.mapped(A)[1])
    fields[3]("g4")
    assert job.opened[-1] == (held, "g4"), "and its tasks"
    assert SqlConfig.model_validate({"url": "sqlite://"}).only([A]).holds(A)

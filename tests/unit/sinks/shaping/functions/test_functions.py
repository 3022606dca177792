"""Functions of a mapping: rows and their dead letters, limits of time, processes that end, and mistakes."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from cdc.config.row_functions import RowFunction, row_function
from cdc.config.store_mapping import StoredTables, TableMapping
from cdc.model.errors import ConfigError
from sinks.contract import Change, Outcome, SourceOperation
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.shaping.check import planned_tables
from sinks.shaping.functions.caller import FunctionCaller, caller
from sinks.shaping.functions.versions import require_versions
from tests.conformance.tables import CUSTOMERS
from tests.support.functions import install
from tests.support.waiting import eventually
from tests.unit.sinks.shaping.test_check import sinks
from tests.unit.sinks.shaping.test_computed import altered, shape
from tests.unit.sinks.shaping.test_sink import Store, mapped
from watershed.verify.expected import ExpectedRows

LIMIT_S = 0.5
ENTRIES = {"label": "functions_of_tests:LABEL"}


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packages"
    install(folder, monkeypatch, ENTRIES)
    return folder


def upsert(version: int, key: int, visits: int | None, name: str | None = "ann") -> Change:
    return CUSTOMERS.upsert(version, id=key, visits=visits, name=name)


def test_a_function_adds_columns_leaves_rows_out_and_rejects_rows_one_by_one() -> None:
    store = Store()
    held = {"function": "label", "function_time_limit_s": LIMIT_S, "exclude": ["name"], "where": "visits <> 99"}
    sink = mapped(store, **held)
    sink.prepare(CUSTOMERS.schema)
    reasons = {
        13: "function label: ValueError: unlucky ann",
        14: "function label: it returned no column score",
        15: "function label: column score is of type float, not Decimal or int, finite",
        16: "function label: no result within 0.5 s",
        17: "function label: no result within 0.5 s",
        18: "function label: its process ended while it computed the row",
        20: "function label: SystemExit: stop",
    }
    changes = [upsert(5, number, number) for number in (3, *reasons, 19, 99, 4)]
    results = sink.apply([*changes, CUSTOMERS.delete(6, id=1)])
    found = {change.key["id"]: result for change, result in zip(changes, results, strict=False)}
    assert {key: one.reason for key, one in found.items() if one.outcome is Outcome.REJECTED} == reasons
    assert {key for key, one in found.items() if one.outcome is Outcome.WRITTEN} == {3, 19, 99, 4}
    written = [(c.key["id"], c.row and (c.row["label"], c.row["score"], "name" in c.row)) for c in store.changes]
    assert written == [(3, ("ANN", "1.5", False)), (19, None), (99, None), (4, ("ANN", "2", False)), (1, None)]
    assert [(c.name, c.type_name, c.nullable) for c in store.schemas[0].columns[-2:]] == [
        ("label", "text", True),
        ("score", "numeric", True),
    ]


def test_a_change_that_lacks_a_column_which_the_function_reads_waits() -> None:
    made = shape(function="label")
    assert made.change(CUSTOMERS.update(5, ["name"], id=1, visits=1)) is None
    other = made.change(CUSTOMERS.update(5, ["photo"], id=1, visits=1, name="x"))
    assert other is not None and other.row is not None
    assert other.row["label"] == "X" and other.unchanged == {"photo"}


def test_a_row_that_is_left_out_says_so_in_its_origin() -> None:
    made = shape(function="label")
    for operation, seen in (("c", "n"), ("u", "x")):
        moved = made.change(upsert(5, 1, 19).__replace__(origin=SourceOperation(operation, 7)))
        assert moved is not None and moved.row is None and moved.origin == SourceOperation(seen, 7)
    gone = made.change(CUSTOMERS.delete(5, id=1).__replace__(origin=SourceOperation("d", 7)))
    assert gone is not None and gone.origin == SourceOperation("x", 7)


def test_columns_of_earlier_schemas_count_only_with_the_same_inputs() -> None:
    other = altered(2, photo=None)
    made = shape(CUSTOMERS.schema, other, function="label")
    assert [column.name for column in made.earlier[0].columns][-2:] == ["label", "score"]
    text = altered(2, visits=replace(CUSTOMERS.schema.columns[11], name="visits", type_oid=23, base_type_oid=701))
    if SchemaHistory((CUSTOMERS.schema, text)).carried(1) >= {"name", "visits"}:
        pytest.fail("the case needs a column that is another one")
    made = shape(CUSTOMERS.schema, text, function="label")
    assert not {"label", "score"} & {column.name for column in made.earlier[0].columns}


def processes(name: str) -> list[psutil.Process]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended, perhaps only just now: another test's, too
            if name in one.cmdline():
                found.append(one)
    return found


def test_a_process_that_ended_between_two_rows_costs_no_row() -> None:
    made = caller("label", "1", {"name": "text", "visits": "integer"}, 7.0)
    assert made.call({"name": "a", "visits": 2}) == {"label": "A", "score": "1"}
    (process,) = processes("label")[-1:]
    process.kill()
    process.wait(10)
    assert made.call({"name": "b", "visits": 2}) == {"label": "B", "score": "1"}
    assert caller("label", "1", {"name": "text", "visits": "integer"}, 7.0) is made, "one for this process"


def test_a_process_that_can_t_start_is_an_error_of_the_store() -> None:
    with pytest.raises(SinkError, match="the process of function absent can't be started: it ended with exit code 1"):
        FunctionCaller("absent", "1", (("name", "text"),), 1.0).call({"name": "x"})


def test_another_version_in_another_process_writes_nothing(functions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package was installed again, there or while the sink runs."""
    section = StoredTables.model_validate({"mapping": {"public.a": {"function": "label"}, "public.b": {}}})
    versions = section.function_versions
    assert versions == {"label": "1"}
    require_versions(versions)
    install(functions, monkeypatch, {"label": "functions_of_tests:CHANGED"})
    with pytest.raises(
        SinkError, match="function label has version 2 on one machine or process of the sink, and version 1"
    ):
        require_versions(versions)
    started = FunctionCaller("label", "1", (("name", "text"), ("visits", "integer")), 5.0)
    with pytest.raises(SinkError, match="the process of function label can't be started: it ended with exit code 1"):
        started.call({"name": "x", "visits": 1})


def test_verification_computes_the_columns_from_the_source() -> None:
    section = StoredTables.model_validate(
        {"mapping": {"public.customers": {"include": ["visits"], "function": "label"}}}
    )
    expected = ExpectedRows("mine", section, SchemaHistory((CUSTOMERS.schema,)), CUSTOMERS.types, {})

    def texts(visits: str) -> list[str | None]:
        row = {"id": "1", "name": "ann", "visits": visits}
        return [row.get(name) for name in CUSTOMERS.types]

    stored = {"id": 1, "visits": 3, "label": "ANN", "score": "1.5"}
    assert expected.is_held(texts("3")) and expected.differences(texts("3"), stored) == ()
    assert not expected.is_held(texts("19"))
    found = expected.differences(texts("3"), stored | {"label": "ann", "score": None})
    assert [(one.column, one.source, one.store) for one in found] == [
        ("label", "'ANN'", "'ann'"),
        ("score", "'1.5'", "null"),
    ]
    assert expected.is_held(texts("13"))
    (failed,) = expected.differences(texts("13"), stored | {"visits": 13})
    assert (failed.column, failed.source) == ("(row)", "not computed: function label: ValueError: unlucky ann")


@pytest.mark.parametrize(
    ("mapping", "reported"),
    [
        ({"function": "lable"}, "there is no function lable; did you mean label?"),
        ({"function": "label", "constants": {"score": 1}}, "the constant score and column score of the function would"),
        ({"function": "label", "rename": {"name": "label"}}, "column label of the function and column name would both"),
        ({"function": "label", "mask": {"truncate": {"name": 1}}}, "function label would show column name, which mask"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_check(mapping: dict[str, Any], reported: str) -> None:
    with pytest.raises(RefusedError) as caught:
        shape(**mapping)
    assert caught.value.message.startswith(f"sink mine: mapping of public.customers: {reported}")
    with pytest.raises(ConfigError, match=r"mapping of public\.customers: "):
        planned_tables(sinks(customers=mapping), [CUSTOMERS.schema])


def test_a_column_that_the_table_lacks_or_no_function_can_read_is_named() -> None:
    with pytest.raises(RefusedError, match=r"function label reads column visits, which table public\.customers does"):
        shape(altered(2, visits=None), function="label")
    tags = next(column for column in CUSTOMERS.schema.columns if column.name == "tags")
    with pytest.raises(RefusedError, match=r"function label reads column visits, which has type text\[\]: functions"):
        shape(altered(2, visits=replace(tags, name="visits")), function="label")


def test_another_version_is_another_mapping_and_another_limit_is_not(
    functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = TableMapping(function="label")
    before = mapping.fingerprint()
    assert TableMapping(function="label", function_time_limit_s=9).fingerprint() == before
    assert TableMapping.parsed(mapping.to_json(), mapping.mask).fingerprint() == before
    install(functions, monkeypatch, {"label": "functions_of_tests:CHANGED"})
    assert mapping.fingerprint() != before
    install(functions, monkeypatch, {})
    with pytest.raises(ConfigError, match="there is no function label; there is none"):
        mapping.fingerprint()
    with pytest.raises(ValueError, match="function_time_limit_s is for function"):
        TableMapping(function_time_limit_s=9)


def test_a_package_that_can_t_be_used_is_named(functions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"gone": "nowhere:F", "other": "functions_of_tests:label"}
    install(functions, monkeypatch, entries)
    with pytest.raises(ConfigError, match=r"function gone \(nowhere:F\) can't be imported: ModuleNotFoundError"):
        row_function("gone")
    with pytest.raises(ConfigError, match=r"function other \(functions_of_tests:label\) is no RowFunction"):
        row_function("other")


@pytest.mark.parametrize(
    ("parts", "reported"),
    [
        ({"call": 1}, "call is no function of one argument"),
        ({"call": lambda: None}, "call is no function of one argument, the row: too many positional arguments"),
        ({"call": dict}, "call is no function of one argument, the row: no signature found"),
        ({"call": pow}, "call is no function of one argument, the row: missing a required"),
        ({"reads": "name"}, "reads is not a list of columns' names"),
        ({"reads": ()}, "reads is not a list of columns' names"),
        ({"reads": ("a", "a")}, "reads names a column twice"),
        ({"returns": ["a"]}, "returns is not a mapping"),
        ({"returns": {"a": "json"}}, "returns: a has type 'json', which is none of boolean, smallint"),
        ({"version": 1}, "version is not a text"),
        ({"version": ""}, "version is not a text"),
    ],
)
def test_a_function_that_is_declared_wrongly_is_refused_where_it_is_declared(
    parts: dict[str, Any], reported: str
) -> None:
    whole: dict[str, Any] = {"call": str.casefold, "reads": ("a",), "returns": {"b": "text"}, "version": "1"}
    RowFunction(**whole)
    with pytest.raises(ValueError, match=reported):
        RowFunction(**whole | parts)


def test_a_coroutine_is_refused() -> None:
    async def call(row: dict[str, Any]) -> None:
        pass

    with pytest.raises(ValueError, match="call is a coroutine or a generator"):
        RowFunction(call, ("a",), {"b": "text"}, "1")  # type: ignore[arg-type]


def test_a_function_ends_with_the_process_that_called_it(functions: Path) -> None:
    """Also while it runs: nobody would end it otherwise."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            made = caller("label", "1", {"name": "text", "visits": "integer"}, 60.0)
            made.call({"name": "a", "visits": 2})
            os.write(write, f"{psutil.Process().children()[-1].pid}\n".encode())
            made.call({"name": "a", "visits": 17})
        finally:
            os._exit(0)
    with os.fdopen(read) as lines:
        process = psutil.Process(int(lines.readline()))
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(write)
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, 10.0, "it ends, too")

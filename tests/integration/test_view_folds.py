"""Views that fold events, over a base that a real SQL sink keeps: each is a plain fold of all events in Python, and a
snapshot of a state is used as long as no change has made it wrong."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
import pytest
import yaml

from cdc.config.stores import SqlConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId, pack_version
from sinks.errors import SinkError
from tests.conformance.stores import url_of
from tests.conformance.tables import table
from tests.conftest import PostgresServer, new_database
from tests.support.folds import EVENTS, FOLD, SEEN, WHOLE, Case, FoldViews, documented, event, total
from tests.support.forked import run
from tests.support.view_tables import ACCOUNT_EVENTS, SHOP, Query
from tests.support.views import KilledError, Workload, base_config, base_sink, killed, random_run, until_idle
from watershed.views import folding
from watershed.views.base import Base
from watershed.views.folding import Folding
from watershed.views.maintainer import ViewMaintainer, define

pytestmark = [pytest.mark.whole, pytest.mark.long]


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer) -> Iterator[FoldViews]:
    """A base for several views, each of other accounts."""
    with new_database(postgres) as dsn:
        config = base_config(dsn)
        with base_sink(config, [ACCOUNT_EVENTS, *SHOP]):
            yield FoldViews(config, dsn, total, FOLD)


@pytest.fixture
def case(shared: FoldViews) -> Iterator[Case]:
    made = Case(shared)
    yield made
    with shared.base() as base:
        base.remove(made.view)


@pytest.mark.parametrize("name", ["accounts", "movements"])
def test_folds_of_the_documentation_are_plain_folds_whatever_is_applied_and_wherever_jobs_end(
    name: str, config: SqlConfig, fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(folding, "EVENTS_TOGETHER", 2)
    section = documented(tmp_path)[name]
    query = Query(section["sql"], section["key"])
    views = FoldViews.of_section(config, fresh_database, section)
    with base_sink(config, query.tables) as sink:
        run = random_run(name, query, views, Workload(sink, query.tables, 5), 5, jobs=2)
    assert run.rows > 0
    assert views.waits == run.fillings, "the view was filled until a filling came to its end, and then no more"


TOTAL: Final = FOLD["function"]
# The moments around a computation: changes become keys; states are stored; rows are written; keys are forgotten.
MOMENTS: Final = ((Base, "collect"), (Folding, "_keep"), (ViewMaintainer, "_apply"), (Base, "written"))


def test_a_fold_is_a_plain_fold_while_the_log_changes_in_the_midst_of_jobs_that_end(
    config: SqlConfig, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes commit after keys were found, and after the moment as of which events are read."""
    text = "SELECT e.account_id, e.no, coalesce(e.kind, 'none') AS kind, coalesce(e.amount, 0) AS amount FROM "
    query = Query(f"{text} account_events e WHERE e.kind IS DISTINCT FROM 'closed'", ["account_id"])
    chance, views = random.Random(3), FoldViews(config, fresh_database, total, FOLD)
    monkeypatch.setattr(folding, "KEYS_TOGETHER", 2)

    def with_changes(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            result = original(*arguments)
            if result != 0 and chance.random() < 0.2:
                workload.step()
            return result

        monkeypatch.setattr(owner, name, call)

    rows = 0
    with base_sink(config, [ACCOUNT_EVENTS]) as log:
        workload = Workload(log, [ACCOUNT_EVENTS], 3)
        with_changes(Base, "collect")
        with_changes(Folding, "discard")
        for _ in range(6):
            with killed(chance, MOMENTS, calls_max=12), views.job("totals", query) as maintainer:
                for _ in range(4):
                    workload.step()
                    if chance.random() < 0.1:
                        workload.truncate()
                    maintainer.step()
                until_idle(maintainer)
                rows += views.assert_equal("totals", query)
        assert rows > 0
        workload.fill()
        with views.job("totals", query) as maintainer:
            until_idle(maintainer)
            assert views.assert_equal("totals", query) == 3


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (event(16), [16]),
        (f"{event(17)}; {event(19)}", [17, 19]),
        (event(5), [2, 4, 5, *WHOLE[2:]]),
        (event(1), [1, *WHOLE]),
        ("UPDATE account_events SET amount = 3 WHERE account_id = account 1 AND no = 6", WHOLE),
        ("UPDATE account_events SET owner = 'Ada' WHERE account_id = account 1 AND no = 6", []),
        ("DELETE FROM account_events WHERE account_id = account 1 AND no = 2", WHOLE[1:]),
        ("DELETE FROM account_events WHERE account_id = account 1 AND no = 14", WHOLE[:-1]),
        ("UPDATE account_events SET no = 20 WHERE account_id = account 1 AND no = 4", [2, *WHOLE[2:], 20]),
        ("UPDATE account_events SET no = 3 WHERE account_id = account 1 AND no = 14", [2, 3, *WHOLE[1:-1]]),
        (
            "UPDATE account_events SET account_id = account 3 WHERE account_id = account 1 AND no = 4",
            [4, 2, *WHOLE[2:]],
        ),
        (
            "UPDATE account_events SET account_id = account 2, no = 16 WHERE account_id = account 1 AND no = 14",
            [*WHOLE[:-1], 16],
        ),
        ("DELETE FROM account_events WHERE account_id = account 1", []),
        (f"{event(18)}; DELETE FROM account_events WHERE no = 18", []),
    ],
)
def test_only_new_events_are_read_unless_one_before_them_changes(change: str, read: Sequence[int], case: Case) -> None:
    with case.job():
        assert case.assert_equal() == 2
    with case.job() as maintainer:  # snapshots outlive the job
        case.do(change)
        assert sorted(case.read_until_idle(maintainer)) == sorted(read)
        case.do(event(100))
        assert case.read_until_idle(maintainer) == [100], "the state was stored again"
    assert case.views.waits == 1, "the view was filled once"


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (event(16), [15, 16]),
        (event(5), [2, 4, 5, *WHOLE[2:], 15]),
        ("UPDATE account_events SET amount = 3 WHERE account_id = account 1 AND no = 2", [*WHOLE, 15]),
        ("DELETE FROM account_events WHERE account_id = account 1 AND no = 4", [2, *WHOLE[2:], 15]),
        ("UPDATE account_events SET no = 20 WHERE account_id = account 1 AND no = 4", [2, *WHOLE[2:], 15, 20]),
        ("UPDATE account_events SET no = 0 WHERE account_id = account 1 AND no = 15", [0, *WHOLE]),
    ],
)
def test_a_change_that_commits_before_the_events_are_read_is_neither_missed_nor_taken_twice(
    change: str, read: Sequence[int], case: Case
) -> None:
    collect = Base.collect

    def meanwhile(*arguments: Any) -> int:
        collected = collect(*arguments)
        case.do(change)
        return collected

    with case.job() as maintainer:
        case.do(event(15))
        with patch.object(Base, "collect", meanwhile):
            assert case.read_by(maintainer.step) == read
        assert case.read_until_idle(maintainer) == [], "the row is up to date, and so is its snapshot"
        case.do(event(100))
        assert case.read_until_idle(maintainer) == [100]


def test_a_transaction_that_began_before_a_snapshot_and_commits_after_it_is_not_missed(case: Case) -> None:
    with case.job() as maintainer, psycopg.connect(case.views.dsn) as late:
        late.execute(event(3).replace("account 1", f"{case.number}1").encode())
        case.do(event(15))
        assert case.read_until_idle(maintainer) == [15]
        late.commit()
        assert case.read_until_idle(maintainer) == [2, 3, *WHOLE[1:], 15]


def test_the_events_of_a_long_log_are_read_in_parts_and_once(case: Case) -> None:
    case.do(
        "INSERT INTO account_events (account_id, no, kind, amount) "
        "SELECT account 3, n, 'k' || n % 3, n / 100.0 FROM generate_series(1, 700) n"
    )
    case.views.fold = FOLD | {"columns": {"count": "int", "total": "numeric(9,3)"}}
    case.text += " AND e.no % 2 = 0"
    with case.job() as maintainer:
        folded = {key % 10: row for (key,), row in case.views.folded(case.query).items()}
        assert case.rows() == {key: row | {"total": round(row["total"], 3)} for key, row in folded.items()}
        for no, calls in ((702, 1), (0, 352)):
            case.do(event(no, 3))
            SEEN.clear()
            until_idle(maintainer)
            assert (len(SEEN), SEEN[-1][1]) == (calls, 702)
        assert case.rows()[3]["count"] == 352


def test_a_view_whose_fold_changes_is_filled_again_from_first_events(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for number, amount in enumerate((1, 2, 2)):
        name = f"folds_of_version_{amount}"
        (tmp_path / f"{name}.py").write_text(f"def apply(state, event):\n    return {{'amount': {amount}}}\n")
        case.views.fold = {"function": f"{name}:apply", "order": ["no"], "columns": {"amount": "int"}}
        with case.job():
            assert case.views.waits == min(number + 1, 2)
            assert [row["amount"] for row in case.rows().values()] == [amount] * 2
    snapshots = f"SELECT DISTINCT state FROM watershed_views_shop.folds WHERE view = '{case.view}'"
    assert case.views.query(snapshots) == [('{"amount":2}',)]
    with case.views.base() as base:
        base.remove(case.view)
    assert case.views.query(snapshots) == []


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_log_that_is_created_again_meanwhile_is_not_folded_while_it_is_empty(
    is_filled: bool, config: SqlConfig, fresh_database: str
) -> None:
    views, query, versions = (
        FoldViews(config, fresh_database, total, FOLD),
        Query(EVENTS, ["account_id"]),
        Base.versions,
    )

    def meanwhile(*arguments: Any) -> Any:
        views.query("CREATE TABLE other (LIKE account_events INCLUDING ALL); DROP TABLE account_events")
        views.query("ALTER TABLE other RENAME TO account_events")
        return versions(*arguments)

    first, second = (event(no).replace("account 1", "1") for no in (2, 4))
    with base_sink(config, [ACCOUNT_EVENTS]):
        views.query(first)
        with views.job("totals", query) as maintainer, views.base() as base:
            folded = views.rows("totals", query)
            views.query(second)
            if is_filled:
                base.ask_rebuild("totals")
            with (
                patch.object(Base, "versions", meanwhile),
                pytest.raises(SinkError, match="view totals: a table of its base was dropped and created again"),
            ):
                maintainer.step()
        assert views.rows("totals", query) == folded != {}
        views.query(f"{first}; {second}")
        with views.job("totals", query):
            assert views.rows("totals", query) == views.folded(query) != folded


def test_a_snapshot_of_another_cluster_is_not_used(case: Case) -> None:
    with case.job() as maintainer:
        case.do("UPDATE watershed_views_shop.folds SET cluster = cluster + 1", event(16))
        assert case.read_until_idle(maintainer) == [*WHOLE, 16]
        case.do(event(18))
        assert case.read_until_idle(maintainer) == [18]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event(16, kind="bad"), f"{TOTAL} fails at the event no = 16: ValueError: no such kind"),
        (event(16, amount="NULL"), f"{TOTAL} fails at the event no = 16: TypeError: "),
        (event(16, kind="many"), 'the state does not fit the columns of the fold: value "40008" is out of range'),
        (event(16, amount="'NaN'"), f"{TOTAL} fails at the event no = 16: ValueError: a state can't hold"),
    ],
)
def test_a_key_whose_fold_fails_is_named_and_others_go_on(bad: str, reason: str, case: Case) -> None:
    with case.job() as maintainer:
        before = case.rows()
        case.do(bad, event(16, account=2), event(18))
        until_idle(maintainer)
        assert list(case.rejected()) == ["1"]
        assert case.rejected()["1"].startswith(reason)
        found = case.rows()
        assert (found[1], found[2]["count"]) == (before[1], 8), "its former row stays"
        with case.views.base() as base:
            assert base.ask_rebuild(case.view)
        with pytest.raises(SinkError, match=f"view {case.view}: the key account_id = {case.number}1 has no state: "):
            maintainer.step()
        assert case.rows() == found, "and a view that is filled keeps its rows"
        case.do("DELETE FROM account_events WHERE account_id = account 1 AND no = 16")
        until_idle(maintainer)
        assert case.assert_equal() == 2
        assert case.rejected() == {}


def test_events_without_a_place_in_the_order_have_their_key_rejected(case: Case) -> None:
    case.views.fold = FOLD | {"order": ["amount"]}
    with case.job() as maintainer:
        case.do(event(16, 1, "NULL"), event(16, 2, "14.5"))
        until_idle(maintainer)
        assert case.rejected() == {
            "1": "the order of an event contains NULL: amount = None",
            "2": "two events have the same order amount = 14.5, which must be unique within a key",
        }
        case.do("UPDATE account_events SET amount = account_id WHERE no = 16 AND amount IS NULL")
        until_idle(maintainer)
        assert list(case.rejected()) == ["2"]
        case.do("UPDATE account_events SET amount = no WHERE no = 16")
        until_idle(maintainer)
        assert case.rejected() == {}
        assert case.assert_equal() == 2


def test_several_columns_may_be_key_and_order(config: SqlConfig, fresh_database: str) -> None:
    """With types whose texts differ from those of JSON."""
    types = {"a": "text", "b": "date", "at": "timestamptz", "n": "float8", "note": "text", "i": "int8"}
    odd = table("public", "odd", ("i",), types)
    text = "SELECT o.b, o.a AS key, o.at AS xid, o.n, o.i, o.note FROM odd o"
    fold = {
        "function": f"{__name__}:notes",
        "order": ["xid", "n"],
        "columns": {"o0": "text[]", "at": "timestamptz"},
    }
    views, query = FoldViews(config, fresh_database, notes, fold), Query(text, ["key", "b"])
    times = ["infinity", "-infinity", "2026-01-01T00:00:00.123456Z", "0044-03-15T00:00:00Z BC"]

    def put(number: int, at: str, n: str, a: str) -> Any:
        return odd.upsert(pack_version(1, number), i=number, a=a, b="2026-02-28", at=at, n=n, note=f"n{number}")

    def noted() -> list[Any]:
        return views.query("SELECT key, array_to_string(o0, ' ') FROM views.odds ORDER BY 1")

    with base_sink(config, [odd]) as sink, views.job("odds", query) as maintainer:
        for number, at in enumerate(times, 1):
            sink.apply([put(number, at, "0.1", "Ü '\\")])
            until_idle(maintainer)
        assert noted() == [("Ü '\\", "n2 n4 n3 n1")]
        sink.apply(
            [put(5, times[2], "-Infinity", "Ü '\\"), put(6, times[0], "NaN", "Ü '\\"), put(7, times[0], "1e300", "")]
        )
        until_idle(maintainer)
        assert noted() == [("", "n7"), ("Ü '\\", "n2 n4 n5 n3 n1 n6")]


def notes(state: Any, event: Any) -> Any:
    return {"o0": [*(state or {"o0": []})["o0"], event["note"]], "at": event["xid"]}


@pytest.mark.parametrize(
    ("text", "fold", "message"),
    [
        ("SELECT id, count(*) AS no FROM customers GROUP BY id", {}, "does not return the rows of one table"),
        ("SELECT DISTINCT id, name AS no FROM customers", {}, "does not return the rows of one table"),
        ("SELECT c.id, o.id AS no FROM customers c JOIN orders o ON o.customer_id = c.id", {}, "does not return"),
        ("SELECT id, (SELECT 1) AS no FROM customers", {}, "does not return the rows of one table"),
        ("SELECT x.id, x.id AS no FROM (SELECT id FROM customers) x", {}, "does not return the rows of one table"),
        ("SELECT id FROM customers", {}, "fold.order: its key has column no, which the query does not return"),
        ("SELECT id + 1 AS id, id AS no FROM customers", {}, "a column of the key is computed"),
        ("SELECT id, id + 1 AS no FROM customers", {}, "a column of the order is computed"),
        ("SELECT id, note AS no FROM orders", {}, "could not identify an ordering operator for type json"),
        ("SELECT id, id AS no FROM customers", {"columns": {"a": "numerik"}}, 'type "numerik" does not exist'),
        ("SELECT id, id AS no FROM customers", {"function": "nowhere:apply"}, "module nowhere can't be imported"),
        ("SELECT id, id AS no FROM customers", {"function": f"{__name__}:nothing"}, "has no function nothing"),
        (
            "SELECT id, id AS no FROM customers",
            {"function": f"{__name__}:documented"},
            "can't be called with a state and",
        ),
    ],
)
def test_a_fold_that_can_not_be_kept_is_refused(
    text: str, fold: dict[str, Any], message: str, shared: FoldViews
) -> None:
    shared.fold = {**FOLD, **fold}
    with shared.base() as base, pytest.raises(ConfigError, match=f"view bad.*{message}"):
        base.described(define("bad", shared.config(Query(text, ["id"])), base))


def test_the_index_of_a_fold_is_named(shared: FoldViews) -> None:
    def missing(order: str) -> list[Any]:
        shared.fold = FOLD | {"order": [order]}
        with shared.base() as base:
            return base.missing_indexes(define("totals", shared.config(Query(EVENTS, ["account_id"])), base))

    log = TableId("public", "account_events")
    assert (missing("no"), missing("amount")) == ([], [(log, ("account_id", "amount"))])
    shared.query("CREATE INDEX ON account_events (account_id, amount, kind)")
    assert missing("amount") == []


def test_commands_find_the_function_beside_the_configuration(shared: FoldViews, tmp_path: Path) -> None:
    section = documented(tmp_path)["accounts"]
    url = url_of(shared.dsn)
    settings = {
        "source": {"dsn": shared.dsn, "tables": ["public.account_events"]},
        "kafka": {"bootstrap_servers": "localhost:1"},
        "topics": {"prefix": "shop"},
        "sinks": {"base": {"type": "sql", "url": url}},
        "http": {"view_port": None},
        "views": {"accounts": section | {"target": {"type": "sql", "url": url, "own_schema": "of_accounts"}}},
    }
    file = tmp_path / "watershed.yml"

    def said(*arguments: str) -> tuple[int, str]:
        file.write_text(yaml.safe_dump(settings))
        done = run([*arguments, "--config", str(file)], deadline_s=60.0)
        return done.returncode, done.stdout + done.stderr

    section["fold"]["order"] = ["kind"]
    code, checked = said("view", "check", "--json")
    assert code == 0, checked
    found = json.loads(checked)
    assert found["fold"] == section["fold"]
    assert found["columns"] == {"account_id": "bigint", **section["fold"]["columns"]}
    assert found["missing_indexes"] == [{"table": "public.account_events", "columns": ["account_id", "kind"]}]
    (tmp_path / "accounts.py").write_text("import nowhere_at_all\n")
    code, failed = said("view", "run")
    assert code == 1, failed
    assert "module accounts can't be imported: ModuleNotFoundError: No module named 'nowhere_at_all'" in failed
    assert "Traceback" not in failed
    assert shared.query("SELECT state FROM watershed_views_shop.views WHERE name = 'accounts'") == [("failed",)]


def test_a_job_that_ends_before_its_rows_are_written_does_not_fold_an_event_twice(case: Case) -> None:
    with case.job() as maintainer:
        case.do(event(16))
        with patch.object(ViewMaintainer, "_apply", side_effect=KilledError), suppress(KilledError):
            maintainer.step()
    with case.job() as maintainer:
        assert case.read_until_idle(maintainer) == [], "the state has the event"

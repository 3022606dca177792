"""`cdc verify` and `cdc repair` beside a load: no drift is reported where there is none, and all where there is."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from sinks.warehouse.engine import Engine
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support import drift
from tests.support.captured import Captured, under_capture
from tests.support.console_browser import Opener
from tests.support.forked import run
from tests.support.http_server import HttpServer, free_port
from tests.support.sink_job import SinkJob
from tests.support.stores import sinks_section
from tests.support.waiting import eventually
from watershed.cli.main import application
from watershed.verify.schedule import VerifySchedule, read_history
from watershed.verify.source_rows import VerifiedTable
from watershed.verify.verifier import read_schema_histories

pytestmark = pytest.mark.whole

STORES = ("search", "cache", "sql")
MAPPING: Final[dict[str, Any]] = {
    "rename": {"price": "cost"},
    "exclude": ["seen"],
    "constants": {"origin": "shop"},
    "where": "price > 3.0",
    "mask": {"truncate": {"note": 3}},
}
COUNT = 5


@pytest.fixture(scope="module")
def goods(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    opensearch: str,
    redis: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Captured]:
    folder, name = tmp_path_factory.mktemp("verify"), f"t{secrets.token_hex(5)}"
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, drift.SCHEMA, [drift.GOODS]) as made,
    ):
        sections = {
            name: section for name, section in sinks_section(folder, opensearch, redis).items() if name in STORES
        }
        sections["search"]["mapping"] = {drift.GOODS: MAPPING}
        sections["cache"]["shapes"] = drift.shapes(name)
        sections["sql"] = {"url": url_of(target)}
        made.settings = {
            "http": {"port": free_port()},
            "sinks": sections | {"idle": {"type": "cache", "url": redis, "key_prefix": f"{name}-idle"}},
            "verify": {"every": "1d"},
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(drift.FILL)
        made.start()
        made.await_caught_up()
        with SinkJob(made.config(), *STORES) as job:
            job.wait_applied(made.progress(), *STORES)
            yield made


@pytest.mark.long
def test_one_row_is_found_in_the_source_its_topic_and_every_store(goods: Captured) -> None:
    """`cdc get`, `cdc tail` and `cdc table show` on the rows that the stores hold."""

    def cdc(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(application(words), [*words, "--config", str(goods.config()), "--json"])
        assert done.exit_code == code, done.output + repr(done.exception)
        return [json.loads(line) for line in done.stdout.splitlines()]

    goods.query("UPDATE goods SET note = 'a new note' WHERE id IN (7, 700)")
    (held,) = cdc("get", drift.GOODS, "700", code=6)
    assert held["source"]["note"] == "a new note"
    (record,) = held["topic"]["records"]
    stores = {store["sink"]: store for store in held["stores"]}
    assert {name: store["verdict"] for name, store in stores.items()} == {
        "search": "equal", "cache": "equal", "sql": "equal", "idle": "not compared",
    }  # fmt: skip
    assert {stores[name]["version"] for name in STORES} == {record["version"]}
    assert (stores["search"]["row"]["note"], stores["cache"]["row"]["note"]) == ("a n", "a new note")

    (left_out,) = cdc("get", drift.GOODS, "7", code=6)
    verdicts = {store["sink"]: store["verdict"] for store in left_out["stores"]}
    assert [verdicts[name] for name in STORES] == ["excluded", "equal", "equal"]
    (gone,) = cdc("get", drift.GOODS, str(drift.STRANGERS - 1), "--records", "0", code=6)
    assert (gone["source"], gone["topic"]["records"]) == (None, [])

    tailed = cdc("tail", drift.GOODS, "--key", "700", "--last", "5", "--no-follow")
    assert tailed[-1]["row"]["note"] == "a new note"
    assert {line["key"]["id"] for line in tailed} == {700}
    (shown,) = cdc("table", "show", drift.GOODS)
    names = {store["sink"]: store["names"] for store in shown["stores"]}
    assert names["search"]["alias"].endswith(".public.goods")
    assert names["sql"] == {"table": "public.goods"}
    assert (shown["status"], shown["key"], shown["stores"][0]["generation"]) == ("captured", ["id"], 1)


@pytest.mark.long
def test_one_row_is_watched_in_the_console_as_it_arrives_in_every_store(goods: Captured, opener: Opener) -> None:
    console = opener.at(HttpServer(goods.settings["http"]["port"]))
    page = console.open(f"tables/{drift.GOODS}/row/700")
    verdicts = page.locator(".comparison thead .pill")  # in the order of the file: cache, idle, search, sql
    expect(verdicts).to_have_text(["equal", "not compared", "equal", "equal"])
    console.require_sound()
    goods.query("UPDATE goods SET note = 'seen here' WHERE id = 700")
    note = page.locator('.comparison tr[data-key="column/note"] td')
    expect(note).to_have_text(["seen here", "seen here", "seen here", "–", "see", "seen here"])
    expect(verdicts).to_have_text(["equal", "not compared", "equal", "equal"])
    for place in ("the source", "the topic", "search", "cache", "sql"):
        expect(page.locator(".arrivals li").filter(has_text=f"{place} shows another row").first).to_be_visible()
    expect(page.locator('.comparison tr[data-key="column/price"] td').nth(4)).to_contain_text("cost")


def nobody() -> Engine:
    raise AssertionError("no warehouse is written here")


SINKS = tuple(word for store in STORES for word in ("--sink", store))


def test_the_job_of_the_sinks_compares_its_stores_by_itself(goods: Captured) -> None:
    config = drift.loaded(goods)

    def scheduled() -> bool:
        records = [read_history(config, store) for store in STORES]
        return all(record is not None and any(run.is_scheduled for run in record.runs) for record in records)

    eventually(scheduled, 120.0, "every store was compared as verify.every says")
    assert VerifySchedule(config, goods.config(), STORES).due(time.time_ns() // 1000) == []


def test_a_sample_has_as_many_rows_as_were_asked_for(goods: Captured) -> None:
    """The table has few pages, and most of them hold no row that is alive."""
    with goods.connect() as connection:
        for _ in range(5):
            with connection.transaction(force_rollback=True):
                connection.execute("UPDATE goods SET note = 'undone'")
        connection.execute("ANALYZE goods")
    config = drift.loaded(goods)
    (schema,) = (history.newest for history in read_schema_histories(config).values())
    with VerifiedTable(config.source, schema) as table:
        assert {len(set(table.sample(200))) for _ in range(30)} == {200}


@pytest.mark.promise(8)
def test_stores_that_are_right_are_found_right_under_load(goods: Captured) -> None:
    with drift.Load(goods.dsn):
        for words in ((), ("--sample", "200")):
            code, report = drift.command(goods, "verify", *SINKS, *words)
            assert (code, report["drift"], report["undecided"]) == (0, 0, 0), report
            assert all(table["source_rows"] > 150 for table in report["tables"])


@pytest.mark.promise(8)
def test_what_differs_is_reported_exactly_and_repaired_under_load(goods: Captured) -> None:
    config = drift.loaded(goods)
    ids = {store: drift.chosen(store, COUNT, STORES) for store in STORES}
    with drift.Load(goods.dsn):
        for store in STORES:
            drift.inject(store, config, ids[store], nobody)
        code, report = drift.command(goods, "verify", *SINKS)
        for store in STORES:
            found = drift.found(report, store)
            assert found == drift.wanted(ids[store]), f"{store}: {found}"
        injected = {store: COUNT * len(ids[store]) for store in STORES}
        assert (code, report["drift"]) == (5, sum(injected.values()))
        histories = {store: compared(goods, store) for store in STORES}
        assert {store: one["drift"] for store, one in histories.items()} == {
            s: {drift.GOODS: injected[s]} for s in STORES
        }
        code, repaired = drift.command(goods, "repair", *SINKS)
        assert (code, repaired["drift"], repaired["undecided"]) == (0, 0, 0), repaired
        assert {t["sink"]: t["repaired"] for t in repaired["tables"]} == injected
        assert drift.command(goods, "verify", *SINKS)[0] == 0
        last, repairing, before = compared(goods, "sql")["runs"][:3]
        assert (last["drift"], last["tables"], repairing["is_repair"], repairing["repaired"]) == (
            {},
            1,
            True,
            COUNT * 5,
        )
        assert before["drift"] == {kind.value: COUNT for kind in drift.KINDS}
        assert compared(goods, "sql")["drift_rows"] == 0


def compared(goods: Captured, sink: str) -> dict[str, Any]:
    """Returns the status of the store's comparisons."""
    status = json.loads(run(["status", "--json", "--config", str(goods.config())], deadline_s=60.0).stdout)
    found: dict[str, Any]
    (found,) = [one["comparison"] for one in status["sinks"] if one["sink"] == sink]
    drifting = [one["name"] for one in status["problems"] if "differs from the source" in one["message"]]
    assert (sink in drifting) == bool(found["drift_rows"])
    return found


def test_a_table_that_was_altered_a_moment_ago_is_compared(goods: Captured) -> None:
    goods.query("ALTER TABLE goods ADD COLUMN extra int")
    goods.query("INSERT INTO goods (id, name, price, extra) VALUES (5000000, 'new', 5, 7)")
    code, report = drift.command(goods, "verify", *SINKS)
    assert (code, report["drift"]) == (0, 0), report


def test_what_can_not_be_compared_is_said(goods: Captured) -> None:
    """Words that name nothing, a sink that never ran, a store that is away, a table that is stopped."""

    def message(*words: str) -> tuple[int, str]:
        done = run(["verify", *words, "--config", str(goods.config())], deadline_s=60.0)
        assert "Traceback" not in done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    code, text = message("--sink", "none")
    assert (code, "has no sink 'none'" in text) == (2, True), text
    code, text = message("--sink", "idle")
    assert (code, "sink idle has never run" in text) == (7, True), text
    code, report = drift.command(goods, "verify")
    reported = {table["sink"]: table["not_compared"] for table in report["tables"]}
    assert (code, report["drift"], reported["cache"], "has never run" in reported["idle"]) == (6, 0, "", True)
    code, text = message("--table", "public.none")
    assert (code, "no table that stores hold matches public.none" in text) == (2, True), text
    cache = goods.settings["sinks"]["cache"]
    there = dict(cache)
    cache["url"] = f"redis://127.0.0.1:{free_port()}"
    code, text = message("--sink", "cache")
    assert (code, "does not answer" in text) == (1, True), text
    cache |= there
    goods.cdc("table", "stop", drift.GOODS)
    eventually(lambda: goods.states()[drift.GOODS]["status"] == "stopped", 60.0, "the table is stopped")
    code, report = drift.command(goods, "verify", "--sink", "cache")
    assert (code, report["drift"]) == (6, 0)
    assert "capture has stopped the table" in report["tables"][0]["not_compared"]

"""The console as a place to work, in a real browser: one table, one key in every place, its changes, operations,
what the process says of itself. The answers are recorded ones; test_demo.py does it with a pipeline."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from pydantic import SecretStr

from cdc.config.http_settings import HttpConfig, HttpUser
from tests.support.browser import violations
from tests.support.console_browser import Console, Opener, picture
from tests.support.console_elsewhere import ShownPrometheus, other_pipelines
from tests.support.console_pipeline import EVIL, ShownPipeline, letter, served, shop_tables, table, view
from tests.support.console_work import ShownWork, record
from watershed.status.model import Problem

pytestmark = pytest.mark.whole

ORDERS = "tables/public.orders"
READ, OPERATE = "read-0123456789abcdef", "operate-0123456789abcdef"
USERS = {
    "viewer": HttpUser(token=SecretStr(READ)),
    "oncall": HttpUser(role="operate", token=SecretStr(OPERATE)),
}


@pytest.fixture
def work() -> Iterator[ShownWork]:
    made = ShownWork()
    yield made
    made.is_open = False


@pytest.fixture
def console(opener: Opener, work: ShownWork) -> Console:
    pipeline = ShownPipeline(tables=shop_tables(), views=(view("totals"), view("documents")))
    return opener.of(pipeline.live(60), parts=[work])


def cell(page: Page, line: str, place: int) -> str:
    """Of the comparison: 0 is the source, 1 the topic, then the stores."""
    return page.locator(f'.comparison tr[data-key="{line}"] td').nth(place).inner_text()


def test_one_key_is_seen_in_all_places_and_a_change_as_it_arrives_in_each(
    console: Console, work: ShownWork, tmp_path: Path
) -> None:
    page = console.open(f"{ORDERS}/row/7")
    expect(page.locator(".comparison thead .pill")).to_have_text(["equal"] * 4)
    expect(page.get_by_text("Without the table, by tables or exclude_tables in their options: audit.")).to_be_visible()
    status = page.locator('.comparison tr[data-key="column/status"] td')
    expect(status).to_have_text(["open"] * 6)
    work.change(status="paid")
    work.arrive("search", "pending")
    expect(status).to_have_text(["paid", *["open"] * 5])
    expect(page.locator(".comparison thead .pill").first).to_have_text("differs now")
    work.publish()
    expect(status).to_have_text(["paid", "paid", *["open"] * 4])
    expect(page.locator(".behind")).to_have_count(4)
    expect(page.locator(".behind").first).to_contain_text("older than the topic's")
    for number, sink in enumerate(("search", "cache", "sql")):
        work.arrive(sink)
        expect(status.nth(2 + [*work.stores].index(sink))).to_have_text("paid")
        expect(page.locator(".behind")).to_have_count(3 - number)
    arrivals = page.locator(".arrivals li")
    expect(arrivals).to_have_count(5)
    expect(arrivals.first).to_contain_text("sql shows another row")
    expect(arrivals.last).to_contain_text("the source shows another row")
    work.arrive(
        "warehouse",
        "differs",
        why="wrong column: status is open, expected paid",
        next="cdc repair --sink warehouse --table public.orders corrects it",
        row=dict(work.source or {}, status="open"),
        differences=[{"column": "status", "expected": "'paid'", "stored": "'open'"}],
    )
    expect(page.locator(".value.differs")).to_contain_text("expected 'paid'")
    expect(page.locator(".reasons code")).to_have_text("cdc repair --sink warehouse --table public.orders")
    page.get_by_role("button", name="Read the topic").click()
    records = page.get_by_role("table", name="Records of this key").locator("tbody tr")
    expect(records).to_have_count(2)
    expect(records.first).to_contain_text("1.1205")
    expect(arrivals).to_have_count(6)  # the warehouse's; what was read of the topic is none
    console.require_sound()
    picture(page, tmp_path, "key-light")


def test_the_first_record_of_a_key_is_an_arrival_if_it_is_new(console: Console, work: ShownWork) -> None:
    page = console.open(f"{ORDERS}/row/8")  # of which the topic has no record
    expect(page.locator(".comparison thead .pill")).to_have_text(["equal"] * 4)
    expect(page.locator(".comparison thead")).to_contain_text("no recent change")
    work.records.append(record(1300, {"id": "8"}, "update", key={"id": 8}))
    expect(page.locator(".arrivals li")).to_have_text([re.compile("the topic shows another row")])


def test_a_key_is_asked_for_by_a_form_and_a_wrong_one_is_said(console: Console) -> None:
    page = console.open(ORDERS)
    page.get_by_label("Key", exact=True).fill("7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="One key: 7")).to_be_visible()
    assert page.url.endswith("#/tables/public.orders/row/7")
    page.get_by_label("Key", exact=True).fill("none")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("next: the key is id: write its value")


def test_a_table_shows_what_it_is_where_it_is_and_its_changes(
    console: Console, work: ShownWork, tmp_path: Path
) -> None:
    page = console.open(ORDERS)
    places = page.get_by_role("table", name="The table in each store")
    for name in ("shop.public.orders-1", "shop:public.orders:KEY", "lake.shop.orders"):
        expect(places).to_contain_text(name)
    expect(places.locator("tr", has_text="search index")).to_contain_text("rows where status <> 'draft'")
    columns = page.get_by_role("table", name="Columns of the table")
    expect(columns.locator("tr", has_text="note")).to_contain_text("asterisks")
    expect(page.locator("details", has_text="2 schema versions")).to_have_count(1)
    for status in ("paid", "sent"):
        work.change(status=status)
        work.publish()
    lines = page.get_by_role("table", name="Changes of public.orders").locator("tbody tr")
    expect(lines).to_have_count(3)
    expect(lines.first).to_contain_text("status paid → sent")
    page.get_by_role("button", name="Pause").click()
    work.change(status="lost")
    work.publish()
    expect(page.get_by_role("button", name="Continue, 1 new")).to_be_visible()
    expect(lines).to_have_count(3)
    page.get_by_role("button", name="Continue, 1 new").click()
    expect(lines).to_have_count(4)
    work.records += [record(2000 + n, {"id": n}, "insert", key={"id": n}) for n in range(300)]
    expect(lines).to_have_count(200)
    page.get_by_label("Only the key").fill("9")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Changes of public.orders")).to_have_count(0)
    work.records.append(record(3000, {"id": 9}, "update", key={"id": 9}))
    expect(lines).to_have_count(1)
    console.require_sound()
    picture(page, tmp_path, "table-light")


def test_values_of_rows_stay_text(console: Console, work: ShownWork) -> None:
    work.change(note=EVIL, status="12345678901234567")
    work.publish()
    work.records[-1]["row"] |= {"id": 12345678901234567}
    for sink in work.stores:
        work.arrive(sink, why=EVIL, next=EVIL)
    page = console.open(f"{ORDERS}/row/7")
    expect(page.locator('.comparison tr[data-key="column/note"] td').first).to_have_text(EVIL)
    assert cell(page, "column/id", 2) == "12345678901234567", "no digit is lost"
    page.get_by_role("button", name="Read the topic").click()
    expect(page.get_by_role("table", name="Records of this key")).to_contain_text("<script>")
    console.open(ORDERS)
    expect(page.locator(".tail")).to_contain_text("<img src=x onerror=")
    console.open(f"tables/{EVIL.replace('/', '%2F')}")
    expect(page.get_by_text("No such table")).to_be_visible()
    assert page.evaluate("window.stolen") is None
    assert page.locator("#view script, #view img").count() == 0
    assert console.complaints == []


def test_an_operator_is_asked_and_told_what_it_costs(opener: Opener, work: ShownWork, tmp_path: Path) -> None:
    rejected = letter("search", "public.orders", 7, "too long", {"id": 7})
    pipeline = ShownPipeline(tables=shop_tables(), letters=(rejected,)).live(60)
    with served(pipeline, http=HttpConfig(users=USERS), parts=[work]) as server:
        console = opener.at(server)
        page = console.open(ORDERS)
        page.get_by_label("Token").fill(READ)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="public.orders")).to_be_visible()
        assert page.locator(".actions button").count() == 0, "a reader is offered nothing"
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").fill(OPERATE)
        page.keyboard.press("Enter")

        page.get_by_role("button", name="Stop capture…").click()
        dialog = page.get_by_role("dialog", name="Stop the capture of public.orders")
        expect(dialog).to_contain_text("What it costs: To start it again, about 612,940 rows must be read.")
        assert violations(page) == []
        picture(page, tmp_path, "dialog-light")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        assert work.asked == []
        page.get_by_role("button", name="Stop capture…").click()
        dialog.get_by_role("button", name="Stop capture").click()
        expect(page.locator(".result")).to_contain_text("Stop the capture of public.orders: accepted: public.orders")
        assert work.asked == [("tables/stop", {"tables": ["public.orders"]})]

        work.refusal = "refused: a snapshot of public.orders runs already"
        page.get_by_role("button", name="Snapshot…").click()
        page.get_by_label("Only rows that fulfil this condition (SQL)").fill("status = 'open'")
        page.get_by_role("button", name="Read rows again").click()
        expect(page.locator(".result.error")).to_contain_text("a snapshot of public.orders runs already; next: `cdc")
        assert work.asked[-1] == ("snapshots/start", {"tables": ["public.orders"], "where": "status = 'open'"})
        assert violations(page) == []

        work.refusal = ""
        step = {"sink": "search", "table": "public.orders", "step": "compared", "done": 40, "total": 90}
        work.states = [
            {"status": "running", "progress": [step]},
            {"status": "done", "result": {"drift": 2, "undecided": 0}},
        ]
        page.get_by_role("button", name="Compare…").click()
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.locator(".result.warning")).to_contain_text("2 rows differ, in 2.5 s")
        assert work.asked[-1] == ("verify", {"sinks": [], "tables": ["public.orders"]})
        page.get_by_role("button", name="Dismiss: Compare all stores").click()
        expect(page.locator(".result")).to_have_count(2)


def test_what_the_process_says_of_itself_is_listed_and_filtered(console: Console, work: ShownWork) -> None:
    work.audit = [
        {
            "at": "2026-11-27T19:00:01.250+00:00",
            "who": "oncall",
            "role": "operate",
            "action": "stop_table",
            "path": "/v1/tables/stop",
            "arguments": {"tables": [EVIL]},
            "result": '200: {"answer": "accepted", "tables": []}',
            "address": "10.0.0.7",
        }
    ]
    page = console.open("system/configuration")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(page.locator("tr", has_text="source.dsn")).to_contain_text("cdc:***@")
    page.get_by_role("button", name="changed").click()
    expect(rows).to_have_count(3)
    console.require_sound()
    console.open("system/log")
    expect(rows.first).to_contain_text("a sink waits")
    page.keyboard.press("/")
    page.keyboard.type("LISTENING")
    expect(rows).to_have_count(1)
    console.require_sound()
    console.open("system/audit")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("oncall")
    expect(rows).to_contain_text("<img src=x")
    console.require_sound()


def test_charts_share_a_cursor_a_scale_and_a_part_of_the_time(console: Console) -> None:
    page = console.open("overview")
    plots = page.locator("svg.plot")
    expect(plots.first).to_have_attribute("aria-label", re.compile("the last 15 minutes"))
    plots.first.hover()
    expect(page.locator('.crosshair[visibility="visible"]')).to_have_count(3)
    page.get_by_role("button", name="logarithmic").click()
    expect(plots.first.locator(".grid text").first).to_have_text(re.compile(r"^0\.0*1$|^1(,?0)*$"))
    plots.first.scroll_into_view_if_needed()
    box = plots.first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80, steps=4)
    page.mouse.up()
    for plot in plots.all():
        expect(plot).to_have_attribute("aria-label", re.compile(r", from \d\d:\d\d:\d\d to "))
    page.get_by_role("button", name="Whole time").click()
    expect(plots.first).to_have_attribute("aria-label", re.compile("the last 15 minutes"))
    expect(page.locator("svg.flow")).to_have_attribute("aria-label", re.compile("totals: view, serving"))


def test_charts_show_hours_from_prometheus(opener: Opener, tmp_path: Path) -> None:
    prometheus = ShownPrometheus()
    console = opener.of(ShownPipeline(tables=shop_tables()).live(60), parts=[prometheus.part()])
    page = console.open("overview")
    plots = page.locator("svg.plot")
    expect(plots.first).to_have_attribute("aria-label", re.compile("the last 15 minutes"))
    page.get_by_role("button", name="24 h").click()
    expect(plots.first).to_have_attribute("aria-label", re.compile(r"the last 24 hours.*capture: now.*warehouse: now"))
    expect(page.locator(".legend").first.locator("li")).to_have_count(5)
    plots.first.hover()
    expect(page.locator('.crosshair[visibility="visible"]')).to_have_count(3)
    expect(page.locator(".crosshair .strong").first).to_have_text(re.compile(r"\d [A-Z][a-z]{2,3}.* \d\d:\d\d"))
    page.mouse.move(0, 0)
    console.require_sound()
    picture(page, tmp_path, "hours-light")
    page.get_by_role("button", name="7 days").click()
    expect(plots.first).to_have_attribute("aria-label", re.compile("the last 168 hours"))
    times = plots.first.locator(".time").all_text_contents()
    assert all(re.fullmatch(r"\d+ [A-Z][a-z]+", text) for text in times)
    assert len(times) >= 3
    phone = opener.of(ShownPipeline(tables=shop_tables()).live(60), parts=[prometheus.part()], width=420)
    phone.open("overview").get_by_role("button", name="24 h").click()
    expect(phone.page.locator("svg.plot").first).to_have_attribute("aria-label", re.compile("the last 24 hours"))
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 420
    prometheus.is_empty = True
    page.get_by_role("button", name="6 h").click()
    expect(page.locator(".charts-section")).to_contain_text("Prometheus has nothing of prefix shop in this time")
    expect(plots).to_have_count(0)
    prometheus.failure = "http://prometheus:9090/api/v1/query_range can't be read: 503 query timed out"
    page.reload()
    page.get_by_role("button", name="6 h").click()
    expect(page.get_by_role("alert")).to_contain_text("503 query timed out; next: check http.prometheus")
    assert violations(page) == []
    page.get_by_role("button", name="15 min").click()
    expect(plots).to_have_count(3)


def test_other_pipelines_are_shown_beside_this_one(opener: Opener, tmp_path: Path) -> None:
    problem = Problem(
        part="table", name="public.a", severity="error", message="no key", next="cdc table start public.a"
    )
    stopped = table("public.a", "stopped", message="no key", next="add one")
    answers: dict[str, ShownPipeline | str] = {
        "eu": ShownPipeline(tables=(*shop_tables(), stopped), problems=(problem,)),
        "us": "[Errno 111] Connection refused",
    }
    own = ShownPipeline(tables=shop_tables()).live(30)
    parts = [other_pipelines(own, answers)]
    console = opener.of(own, parts=parts)
    page = console.open("pipelines")
    lines = page.get_by_role("table", name="Pipelines and their states").locator("tbody tr")
    expect(lines).to_have_count(3)
    expect(lines.first).to_contain_text("this one shop · database shop")
    expect(lines.locator(".pill")).to_have_text(["All in step", "1 error", "No answer"])
    expect(lines.nth(1)).to_contain_text("6, 1 stopped")
    expect(lines.nth(1).locator(".row-note")).to_contain_text("public.a: no keyNext: cdc table start public.a")
    expect(lines.nth(1).get_by_role("link", name="eu")).to_have_attribute("href", "https://eu:8480")
    expect(lines.nth(2).locator(".row-note")).to_contain_text("Connection refusedNext: check http.pipelines.us")
    console.require_sound()
    picture(page, tmp_path, "pipelines-light")
    answers["us"], answers["eu"] = ShownPipeline(), "timed out"
    expect(lines.locator(".pill")).to_have_text(["All in step", "No answer", "All in step"])
    expect(lines.nth(1)).to_contain_text("What is shown is its state of")
    expect(lines.nth(1)).to_contain_text("6, 1 stopped")
    phone = opener.of(own, parts=parts, width=420, color_scheme="dark")
    phone.open("pipelines")
    expect(phone.page.locator("tbody tr")).to_have_count(3)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 420
    phone.require_sound()
    picture(phone.page, tmp_path, "pipelines-phone-dark")


def test_a_word_is_explained_where_it_stands(console: Console) -> None:
    page = console.open("overview")
    word = page.locator(".term", has_text="WAL budget")
    word.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("the amount of log that the slot may still make PostgreSQL")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()
    word.press("Enter")
    expect(page.locator(".glossary .chosen dt")).to_have_text("WAL budget")


def test_a_problem_is_listed_once_with_its_tables(opener: Opener) -> None:
    names = [f"tenant_{n:03}.orders" for n in range(120)]
    problems = tuple(
        Problem(part="table", name=n, severity="error", message=f"{n} is stopped: no key", next=f"cdc table start {n}")
        for n in names
    )
    stopped = tuple(table(name, "stopped", message="no key", next="add one") for name in names)
    page = opener.of(ShownPipeline(tables=stopped, problems=problems).live(30)).open("problems")
    expect(page.locator(".problem")).to_have_count(1)
    expect(page.locator(".problem-head")).to_contain_text("120")
    page.get_by_text("Of which").click()
    expect(page.locator(".names li")).to_have_count(20)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_headers_and_needs_no_scrolling_to_the_side(
    opener: Opener, work: ShownWork, theme: str, tmp_path: Path
) -> None:
    pipeline = ShownPipeline(tables=shop_tables(), views=(view("totals"),)).live(60)
    console = opener.of(pipeline, parts=[work], width=420, color_scheme=theme)
    for address in ("overview", "tables", "stores", ORDERS, f"{ORDERS}/row/7", "system/audit", "glossary"):
        page = console.open(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, address
        if address != "glossary":
            expect(page.locator(".nav [aria-current=page]")).to_be_in_viewport(ratio=0.9)
        console.require_sound()
        if address == "tables":
            labels = page.locator("tbody tr").first.locator("td").evaluate_all(
                "cells => cells.map((cell) => getComputedStyle(cell, '::before').content)"
            )  # fmt: skip
            assert labels == ['"State"', '"Snapshot"', '"Left out"']
        if address == f"{ORDERS}/row/7":
            picture(page, tmp_path, f"phone-{theme}")


@pytest.mark.long
def test_a_thousand_stores_are_filtered(opener: Opener) -> None:
    names = tuple(f"cache_{n:03}" for n in range(1_000))
    page = opener.of(ShownPipeline(sinks=names)).open("stores")
    expect(page.locator("article.store")).to_have_count(24)
    page.keyboard.press("/")
    page.keyboard.type("cache_42")
    expect(page.locator("article.store")).to_have_count(10)
    page.goto(f"{page.url.split('#')[0]}#/overview")
    expect(page.get_by_role("link", name="988 stores more")).to_be_visible()

"""The console in a real browser: each section, what it does, its looks as pictures, and axe's judgement of it.

The pictures of docs/assets are made here: WATERSHED_PICTURES=docs/assets pytest tests/integration/test_console.py
"""

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect
from pydantic import SecretStr

from cdc.config.http_settings import HttpConfig, HttpUser
from tests.support.browser import violations
from tests.support.captured import Captured
from tests.support.console_browser import Opener, picture
from tests.support.console_pipeline import (
    EVIL,
    ShownPipeline,
    letter,
    many_tables,
    served,
    shop_tables,
    table,
    view,
)
from tests.support.http_server import HttpServer, free_port
from tests.support.waiting import eventually
from watershed.status.model import Problem

pytestmark = pytest.mark.whole

SECTIONS = ("overview", "tables", "stores", "letters", "problems")
MASKED = letter("search", "public.customers", 9, "email is too long", {"id": 9, "email": "x@example.org"})
REJECTED = letter(
    "search", "public.orders", 7, "failed to parse field [note] of type [date]", {"id": 7, "note": "soon"}
)
PROBLEMS = (
    Problem(
        part="sink",
        name="search",
        severity="warning",
        message="search: its store rejected 2 rows, which are dead letters",
        next="cdc dlq list search says why; once the cause is removed: cdc dlq replay search",
    ),
)


def shop() -> ShownPipeline:
    return ShownPipeline(tables=shop_tables(), problems=PROBLEMS, letters=(REJECTED, MASKED)).live()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_section_is_drawn_and_axe_finds_nothing(opener: Opener, theme: str, tmp_path: Path) -> None:
    console = opener.of(shop(), color_scheme=theme)
    for section in SECTIONS:
        page = console.open(section)
        expect(page.locator(".nav [aria-current=page]")).to_have_attribute("href", f"#/{section}")
        if section == "letters":
            expect(page.locator(".letter")).to_have_count(2)
        console.require_sound()
        if section == "overview":
            picture(page, tmp_path, f"{section}-{theme}")


def test_the_picture_and_the_charts_say_what_they_show(opener: Opener) -> None:
    page = opener.of(shop()).open("overview")
    flow = page.locator("svg.flow")
    message = flow.get_attribute("aria-label") or ""
    for part in (
        "shop: PostgreSQL 18.1",
        "Capture: streaming",
        "Kafka: prefix shop",
        "warehouse: warehouse, catching up",
    ):
        assert part in message
    assert flow.locator(".node").count() == 7
    charts = [figure.get_attribute("aria-label") or "" for figure in page.locator("svg.plot").all()]
    assert [text.split(",")[0] for text in charts] == ["Behind the source", "Throughput", "WAL held for the slot"]
    assert "the last 15 minutes" in charts[0]
    assert "warehouse: now" in charts[0]
    page.get_by_role("button", name="30 min").click()
    expect(page.locator("svg.plot").first).to_have_attribute("aria-label", _with("the last 30 minutes"))
    expect(page.get_by_role("meter", name="WAL budget in use")).to_have_attribute(
        "aria-valuenow", re.compile(r"^[4-8]$")
    )
    page.locator("svg.plot").first.hover()
    expect(page.locator(".crosshair").first).to_have_attribute("visibility", "visible")


def _with(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def test_a_thousand_tables_are_filtered_ordered_and_paged(opener: Opener, tmp_path: Path) -> None:
    console = opener.of(ShownPipeline(tables=many_tables()))
    page = console.open("tables")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(page.get_by_text("1–50 of 1,000 tables")).to_be_visible()
    picture(page, tmp_path, "tables")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51–100 of 1,000 tables")).to_be_visible()
    page.get_by_role("button", name="stopped 10").click()
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text("cdc table start")
    page.get_by_role("button", name="all 1,000").click()
    page.keyboard.press("/")
    page.keyboard.type("tenant_042.orders")
    expect(rows).to_have_count(2)
    expect(page.locator("#filter")).to_be_focused()
    page.locator("#filter").fill("")
    page.get_by_role("button", name="Snapshot", exact=True).click()
    expect(page.locator("th", has_text="Snapshot")).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text("tenant_090.events_3")
    page.locator("#filter").fill("none such")
    expect(page.get_by_text("no table matches")).to_be_visible()
    console.require_sound()


def test_what_comes_from_outside_stays_text(opener: Opener) -> None:
    evil = Problem(part="sink", name=EVIL, severity="error", message=f"{EVIL} is away", next=f"`{EVIL}`; cdc run")
    stopped = table(f"public.{EVIL}", "stopped", message=EVIL, next=EVIL, dead_letters=1)
    rejected = letter("search", f"public.{EVIL}", 1, EVIL, {"id": 1, EVIL: EVIL})
    pipeline = ShownPipeline(
        tables=(stopped,), sinks=("search", EVIL), problems=(evil,), letters=(rejected, rejected)
    ).live(60)
    console = opener.of(pipeline)
    for section in SECTIONS:
        page = console.open(section)
        if section == "letters":
            page.get_by_text("Show the row").first.click()
            expect(page.locator("pre").first).to_contain_text("stolen")
        expect(page.locator("#view")).to_contain_text("<script>")
        assert page.evaluate("window.stolen") is None
        assert page.locator("#view script, #view img").count() == 0
    console.require_sound()


def test_stores_show_what_comparisons_found(opener: Opener, tmp_path: Path) -> None:
    """The status as `verify.every` makes it."""
    run = {
        "seconds": 41.0,
        "applied_lsn": "3/1",
        "is_scheduled": True,
        "is_repair": False,
        "is_sample": False,
        "tables": 5,
    }
    run |= {"begun_unix_seconds": time.time() - 600, "rows": 2_574_879, "drift": {}, "undecided": 0, "repaired": 0}
    equal = run | {"not_compared": {}}
    drifted = equal | {"drift": {"different": 2, "missing": 1}, "begun_unix_seconds": time.time() - 4_200}
    repaired = equal | {"is_repair": True, "is_scheduled": False, "repaired": 3}
    found = {
        "search": {"drift_rows": 0, "drift": {}, "runs": [equal, repaired, drifted]},
        "cache": {"drift_rows": 3, "drift": {"public.orders": 3}, "runs": [drifted]},
        "warehouse": {"drift_rows": 0, "drift": {}, "runs": [equal]},
        "sql": None,
    }

    def answer(route: Route) -> None:
        status = route.fetch().json()
        for sink in status["sinks"]:
            sink["comparison"] = found[sink["sink"]]
        route.fulfill(json=status)

    console = opener.of(shop())
    console.page.route("**/v1/status", answer)
    page = console.open("stores")
    search = page.get_by_role("article", name="search")
    expect(search.locator(".comparisons .pill")).to_have_text("equal")
    expect(search.locator(".comparisons li")).to_have_count(3)
    expect(search.locator(".comparisons li").nth(1)).to_contain_text("2,574,879 rows equal, 3 repaired")
    expect(search.locator(".comparisons li").nth(2)).to_contain_text("3 rows differed")
    expect(page.get_by_role("article", name="cache").locator(".comparisons .pill")).to_have_text("3 rows differ")
    expect(page.get_by_role("article", name="sql")).to_contain_text("Never yet. cdc verify --sink sql")
    console.require_sound()
    picture(page, tmp_path, "stores-light")


def test_views_are_shown_where_there_are_some(opener: Opener) -> None:
    failing = {"error": "2 rows have the key id = 1", "next": "correct the rows, then `cdc view run totals`"}
    waits = {"waiting_changes": 1_200, "oldest_change_seconds": 95.0, "waiting_keys": 40, "rejected_rows": 2}
    known = (view("documents"), view("totals", "failed", is_kept=False, **waits, **failing))
    problem = Problem(
        part="view",
        name="totals",
        severity="error",
        message="the view has stopped: 2 rows have the key id = 1",
        next=failing["next"],
    )
    console = opener.of(ShownPipeline(tables=shop_tables(), views=known, problems=(problem,)))
    page = console.open("views")
    expect(page.locator(".nav [aria-current=page]")).to_have_text("Views2")
    expect(page.get_by_role("article", name="documents").locator(".pill")).to_have_text("serving")
    expect(page.get_by_role("article", name="documents")).to_contain_text("Oldest changenone waits")
    totals = page.get_by_role("article", name="totals")
    expect(totals.locator(".pill")).to_have_class("pill error")
    for text in (
        "Oldest change95 s",
        "Changes that wait1,200",
        "Keys that wait40",
        "Rejected rows2",
        "Kept by a processno",
    ):
        expect(totals).to_contain_text(text)
    expect(totals).to_contain_text("Error: 2 rows have the key id = 1")
    expect(totals.locator(".row-note code")).to_have_text(["cdc view run totals"])
    console.require_sound()
    without = opener.of(shop())
    page = without.open("views")
    expect(page.locator("#nav a")).to_have_count(6)
    expect(page.locator(".nav [aria-current=page]")).to_have_attribute("href", "#/overview")


def test_a_server_with_users_asks_for_a_token(opener: Opener, tmp_path: Path) -> None:
    users = {"viewer": HttpUser(token=SecretStr("read-0123456789abcdef"))}
    with served(shop(), http=HttpConfig(users=users)) as server:
        page = opener.at(server).open("overview")
        field, button = page.get_by_label("Token"), page.get_by_role("button", name="Log in")
        assert violations(page) == []
        picture(page, tmp_path, "login")
        expect(page.locator("#raw")).to_be_hidden()
        field.fill("wrong-0123456789abcdef")
        button.click()
        expect(page.get_by_role("alert")).to_have_text("Refused: the token is not known.")
        field.fill("read-0123456789abcdef")
        field.press("Enter")
        expect(page.locator("#health")).to_contain_text("1 warning")
        page.reload()
        expect(page.locator("#health")).to_contain_text("1 warning")
        page.goto(f"http://127.0.0.1:{server.port}/console/#/letters")
        expect(page.locator(".withheld").last).to_contain_text("role operate")
        page.get_by_role("button", name="Log out").click()
        expect(field).to_be_visible()
        expect(page.locator(".letter")).to_have_count(0)


def test_letters_show_a_row_when_asked_and_never_a_masked_one(opener: Opener) -> None:
    page = opener.of(shop()).open("letters")
    order, customer = (
        page.locator(".letter", has_text="public.orders"),
        page.locator(".letter", has_text="public.customers"),
    )
    expect(order.locator("pre")).to_be_hidden()
    order.get_by_text("Show the row").click()
    expect(order.locator("pre")).to_contain_text('"note": "soon"')
    expect(customer).to_contain_text("the configuration masks columns of this table")
    assert "x@example.org" not in page.content()


def test_remedies_become_commands_that_can_be_copied(opener: Opener) -> None:
    console = opener.of(shop(), permissions=["clipboard-read", "clipboard-write"])
    page = console.open("problems")
    page.get_by_role("button", name="Copy: cdc dlq replay search").click()
    expect(page.get_by_role("status").filter(has_text="The command is copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == "cdc dlq replay search"
    cases = [
        ("start `cdc run`; if it is running, its log says what it is waiting for", "", ["cdc run"]),
        ("cdc dlq list s says why; then: cdc dlq replay s", "s", ["cdc dlq list s", "cdc dlq replay s"]),
        ("remove the cause, then: cdc snapshot resume --table public.a", "", ["cdc snapshot resume --table public.a"]),
        ("cdc rebuild --sink s --drop-old, then start again", "s", ["cdc rebuild --sink s --drop-old"]),
        ("cdc table start, which reads all its rows again", "", ["cdc table start"]),
        ("check that cdc run is running (cdc status)", "", ["cdc run", "cdc status"]),
        ("the cdc package is missing; what cdc.publish() wrote", "", []),
    ]  # fmt: skip
    for text, name, commands in cases:
        found = page.evaluate("async (given) => (await import('./format.js')).commandsOf(...given)", [text, name])
        assert found == commands, text


def test_the_theme_is_the_systems_until_one_is_chosen(opener: Opener) -> None:
    console = opener.of(shop(), color_scheme="dark")
    page = console.open("overview")

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground() == "rgb(12, 19, 22)"
    page.get_by_role("button", name="Theme: System. Change to Light").click()
    assert ground() == "rgb(243, 246, 247)"
    page.reload()
    assert ground() == "rgb(243, 246, 247)", "the choice is kept"


def test_the_keyboard_reaches_everything(opener: Opener) -> None:
    page = opener.of(shop()).open("overview")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.locator(".nav a", has_text="Stores").press("Enter")  # the page is drawn again each second
    expect(page.locator(".store")).to_have_count(4)
    expect(page.locator("#main")).to_be_focused()


def test_before_the_first_capture_the_first_steps_are_shown(opener: Opener) -> None:
    console = opener.of(ShownPipeline(state="not started", sinks=()))
    page = console.open("overview")
    expect(page.get_by_role("heading", name="Nothing is captured yet")).to_be_visible()
    expect(page.locator(".steps code")).to_have_text(["cdc check", "cdc run", "cdc sink run NAME"])
    console.require_sound()


def test_a_server_that_is_away_is_said_and_its_return_too(opener: Opener) -> None:
    port = free_port()
    with served(shop(), port) as server:
        console = opener.at(server)
        page = console.open("overview")
        expect(page.locator("#health")).to_contain_text("1 warning")
    expect(page.get_by_role("alert")).to_contain_text("This process has not answered since")
    expect(page.locator("#health")).to_contain_text("No answer")
    expect(page.locator("svg.flow")).to_be_visible()
    assert violations(page) == []
    with served(shop(), port):
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("#health")).to_contain_text("1 warning")


def test_the_console_of_a_capture_that_runs(opener: Opener, items: Captured) -> None:
    """Rows become records; a table that stops is a problem with its command, and one that is over after the start."""
    port = free_port()
    items.settings = {"http": {"port": port}}
    items.query("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 200) n")
    items.start()
    server = HttpServer(port)
    server.await_ready()
    console = opener.at(server)
    page = console.open("overview")
    message = page.locator("svg.flow")
    expect(message).to_have_attribute("aria-label", _with("Capture: streaming"))
    expect(page.get_by_text("200 records published")).to_be_visible(timeout=20_000)
    items.query("INSERT INTO items SELECT n, 'y' FROM generate_series(1001, 1500) n")
    expect(page.get_by_text("700 records published")).to_be_visible(timeout=20_000)
    items.cdc("table", "stop", "public.items")
    expect(page.locator(".attention")).to_contain_text("an operator stopped it")
    for section in SECTIONS:
        console.open(section)
        console.require_sound()
    # Problems are sampled every five seconds; a shorter one would not be remembered.
    eventually(lambda: "an operator stopped it" in server.get("/v1/history")[1], 20.0, "the problem is remembered")
    items.cdc("table", "start", "public.items")
    server.await_ready()
    expect(page.locator(".problems.over")).to_contain_text("an operator stopped it", timeout=120_000)


@pytest.mark.long
def test_one_key_of_a_capture_that_runs_is_watched(opener: Opener, items: Captured) -> None:
    """The routes of a table, of one row, of changes and of the process itself, without a sink."""
    port = free_port()
    items.settings = {"http": {"port": port}}
    items.query("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 20) n")
    items.start()
    server = HttpServer(port)
    server.await_ready()
    items.await_caught_up()  # otherwise the snapshot reads the row, and no insert is shown
    items.query("INSERT INTO items VALUES (21, 'late')")
    console = opener.at(server)
    page = console.open("tables/public.items")
    expect(page.get_by_role("table", name="Columns of the table")).to_contain_text("integer")
    expect(page.get_by_role("table", name="Changes of public.items").locator("tbody tr").first).to_contain_text(
        "insert"
    )
    console.require_sound()
    console.open("tables/public.items/row/1")
    name = page.locator('.comparison tr[data-key="column/name"] td')
    expect(name.first).to_have_text("x")
    items.query("UPDATE items SET name = 'seen' WHERE id = 1")
    expect(name).to_have_text(["seen", "seen"])
    expect(page.locator(".arrivals li").first).to_be_visible()
    page.get_by_role("button", name="Read the topic").click()
    expect(page.get_by_role("table", name="Records of this key").locator("tbody tr").first).to_contain_text("seen")
    console.require_sound()
    for shown, text in (("configuration", "topics.prefix"), ("log", "listening"), ("audit", "no record matches")):
        console.open(f"system/{shown}")
        expect(page.locator("#view")).to_contain_text(text)
        console.require_sound()

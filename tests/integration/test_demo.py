"""The demo from end to end, as a user runs it: the whole path, a store that is filled while capture and the others are
killed, and a comparison that finds what is wrong and nothing else."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import redis
import yaml
from confluent_kafka import Producer
from opensearchpy import OpenSearch
from playwright.sync_api import expect

from tests.support.browser import executable, opened_browser, violations
from tests.support.waiting import eventually
from watershed.demo import naive
from watershed.demo.followed import ORDER
from watershed.devstack.processes import Process, identify, runs, with_descendants

pytestmark = pytest.mark.whole

RUN_S_MAX = 600.0  # a minute and a half on an idle machine; other tests' servers may share it
END_S_MAX = 60.0


class Demo:
    """A running `cdc demo`."""

    def __init__(self, process: subprocess.Popen[str], output: Path, folder: Path) -> None:
        self.process = process
        self._output = output
        self.folder = folder

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None or text in self.output, self.output
            return text in self.output

        eventually(is_there, RUN_S_MAX, f"the demo says {text!r}")

    def family(self) -> list[Process]:
        found = identify(self.process.pid)
        assert found
        return with_descendants(found)

    def press_enter(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def config(self) -> Any:
        return yaml.safe_load((self.folder / "watershed.yml").read_text(encoding="utf-8"))


@contextmanager
def running_demo(tmp_path: Path, *options: str) -> Iterator[Demo]:
    folder, output = tmp_path / "demo", tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "watershed", "demo", "--folder", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        )
    demo = Demo(process, output, folder)
    try:
        yield demo
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def drive_console(port: int) -> None:
    """Every section shows the demo's pipeline, and axe has nothing to say; without a browser, nothing is done."""
    if executable() is None:
        return
    with opened_browser() as browser:
        page = browser.new_page(reduced_motion="reduce")
        for section, shows in (
            ("overview", "From source to stores"),
            ("tables", "public.order_lines"),
            ("stores", "search index"),
            ("letters", "No store has rejected a row"),
            ("problems", "Now"),
        ):
            page.goto(f"http://127.0.0.1:{port}/console/#/{section}")
            expect(page.locator("#view")).to_contain_text(shows, timeout=30_000)
            assert violations(page) == []


def falsify_cache(url: str) -> str:
    """Change one value of one order; its key."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        name = next(key for key in client.scan_iter("shop:public.orders:*", _type="hash") if client.hexists(key, "doc"))
        document = json.loads(str(client.hget(name, "doc")))
        client.hset(name, "doc", json.dumps(document | {"note": "falsified in the cache"}))
        return str(document["id"])


def falsify_search(url: str) -> str:
    """Change one value of one product; its key.

    The document is edited as text: `json` would read the price 162.40 as the float 162.4, a second difference.
    """
    with OpenSearch(url) as client:
        hit = client.search(index="shop.public.products", body={"size": 1})["hits"]["hits"][0]
        address = f"{url}/{hit['_index']}/_source/{quote(hit['_id'], safe='')}"
        with urlopen(address) as answer:  # noqa: S310
            text = answer.read().decode()
        title = json.dumps(hit["_source"]["title"])
        assert text.count(title) == 1, text
        body = text.replace(title, '"falsified in the search index"')
        client.index(index=hit["_index"], id=hit["_id"], body=body, params={"refresh": "true"})
        return str(hit["_source"]["id"])


def forge_event(bootstrap_servers: str) -> None:
    """An order that nobody placed, among the events of orders."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    headers: dict[str, str | bytes | None] = {"id": b"forged", "eventType": b"OrderPlaced"}
    producer.produce("outbox.event.order", b'{"total": "0.01"}', b"0", headers=headers)
    assert producer.flush(30) == 0


def assert_views_and_drift(output: str, falsified: int) -> None:
    """Views have rows, their process was killed, they changed on the screen; the cache from the log has not drifted."""
    compared = re.findall(r"views\.(\w+) +│ +([\d,]+) │ +([\d,]+) │ +(\d+) │", output)
    assert [name for name, *_ in compared] == ["order_documents", "revenue_by_hour", "alerts"], output
    for _, source_rows, store_rows, differ in compared:
        assert source_rows == store_rows != "0"
        assert differ == "0"
    assert "kill -9 views" in output
    assert re.search(r"revenue +2026-09-01 12:00  [\d.,]+, corrected from [\d.]+", output), output
    started, stopped = re.findall(r"alerts: ([\d,]+) started and ([\d,]+) stopped", output)[0]
    assert started != "0" and stopped != "0"
    ((orders, kept),) = re.findall(r"kept by Watershed +│ +(\d+) │ +(\d+) │", output)
    assert (int(orders), int(kept)) == (naive.ORDER_COUNT, int(falsified >= naive.FIRST_ORDER))
    assert re.search(r"▲ .*kill -9: capture at [\d.]+ s, sinks at [\d.]+ s, views at", output), output


@pytest.mark.promise(2)
@pytest.mark.promise(3)
@pytest.mark.promise(8)
@pytest.mark.invariant(5)
def test_after_kills_all_stores_and_books_are_equal_but_for_what_was_falsified_by_hand(tmp_path: Path) -> None:
    """The warehouse is one that did not exist: it is filled beside the workload, from rows that are read meanwhile. The
    views are kept over the kill of their process."""
    options = [
        "--seconds",
        "15",
        "--rows",
        "1000",
        "--rate",
        "100",
        "--hold",
        "300",
        "--bootstrap",
        "warehouse",
        "--keep",
        "--views",
    ]
    with running_demo(tmp_path, *options) as demo:
        demo.wait_for("press Enter to go on")
        sinks = demo.config()["sinks"]
        order, product = falsify_cache(sinks["cache"]["url"]), falsify_search(sinks["search"]["url"])
        forge_event(demo.config()["kafka"]["bootstrap_servers"])
        family = demo.family()
        drive_console(demo.config()["http"]["port"])
        demo.press_enter()
        demo.wait_for("Enter ends the demo")
        demo.press_enter()
        assert demo.process.wait(RUN_S_MAX) == 1
    compared, _, kept = demo.output.partition("one order in all its places")
    lines = compared.splitlines()
    assert [line for line in lines if "kill -9" in line and "started again" in line] != []
    assert any("first synced row" in line for line in lines)
    assert any("warehouse is filled after" in line for line in lines)
    named = [place for place, line in enumerate(lines) if line.endswith(": wrong column")]
    assert [lines[place] for place in named] == [
        f'search: public.products {{"id":"{product}"}}: wrong column',
        f'cache: public.orders {{"id":{order}}}: wrong column',
    ], demo.output
    assert lines[named[0] + 1].startswith("  title is 'falsified in the search index' in the store, ")
    assert lines[named[1] + 1].startswith("  note is 'falsified in the cache' in the store, ")
    assert "2 rows differ in search, cache, warehouse, base, views" in demo.output
    assert_views_and_drift(compared, int(order))
    books = [line for line in lines if line.startswith("books: ")]
    assert len(books) == 2, demo.output
    orders, revenue = (re.findall(r"([-\d,.]+) by events, ([-\d,.]+) in SQL", line)[0] for line in books)
    for (by_events, true), more in ((orders, 1), (revenue, Decimal("0.01"))):
        assert Decimal(by_events.replace(",", "")) == Decimal(true.replace(",", "")) + more
    assert "the books differ from PostgreSQL: orders: " in demo.output
    counted, repeated = re.findall(r"^([\d,]+) events; ([\d,]+) were received again", demo.output, re.MULTILINE)[0]
    assert int(counted.replace(",", "")) > int(repeated.replace(",", "")) > 0
    assert not any(map(runs, family))
    found, _, repaired = kept.partition("$ cdc repair")
    assert "nobody wrote this" in found.partition("$ cdc verify")[2]
    assert "$ cdc verify" in repaired, "it is compared again"
    assert f"console: http://127.0.0.1:{demo.config()['http']['port']}/" in compared
    assert f"SELECT * FROM orders WHERE id = {ORDER}'" in kept


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--seconds", "20", "--rows", "2000") as demo:
        demo.wait_for("starting capture")
        eventually(lambda: (demo.folder / "logs" / "capture.log").exists(), 90.0, "capture has started")
        family = demo.family()
        assert len(family) > 5
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(END_S_MAX) == 130
    assert not any(map(runs, family))
    assert "Traceback" not in demo.output
    assert (demo.folder / "logs" / "postgres.log").exists()


def test_a_demo_in_a_folder_of_others_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").touch()
    with running_demo(tmp_path) as demo:
        assert demo.process.wait(END_S_MAX) == 2
    assert demo.output.startswith(f"error: {tmp_path}/demo has files that the demo did not create")
    assert "--folder" in demo.output

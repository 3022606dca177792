"""`cdc snapshot` as an operator runs it, with the real daemon."""

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config.config_file import load_config
from cdc.kafka.state_reader import read_captured, read_state
from spark_jobs.generations import Checkpoints
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, CaptureProcess, under_capture
from tests.support.forked import CDC, run
from tests.support.stores import stored_rows
from tests.support.waiting import eventually
from tests.support.workload import Workload, fill

pytestmark = pytest.mark.whole

ROWS = 600
COMMAND_S_MAX = 120.0
# A whole snapshot takes one or two seconds: time enough to pause it.
SLOW = {"mode": "never", "chunk_rows_max": 40, "rows_per_s_max": 120}


def snapshot(captured: Captured, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    return run(["snapshot", *words, "--config", str(captured.folder / "watershed.yml")], deadline_s=COMMAND_S_MAX)


def started(captured: Captured, *words: str) -> "subprocess.Popen[str]":
    """As a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", CDC, "snapshot", *words, "--config", str(captured.folder / "watershed.yml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The lines of --json."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def status(captured: Captured) -> dict[str, Any]:
    """Of table items."""
    (line,) = said(snapshot(captured, "status", "--json"))
    (table,) = line["tables"]
    assert isinstance(table, dict)
    return table


def rows_published(captured: Captured) -> int:
    """By the snapshot of table items that runs; 0 while none does."""
    snapshots = read_state(load_config(captured.folder / "watershed.yml")).snapshots
    return sum(record.rows for record in snapshots if record.status == "running")


@pytest.fixture(scope="module")
def running() -> list[CaptureProcess]:
    """The capture of `slow`."""
    return []


@pytest.fixture(scope="module")
def slow(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
    running: list[CaptureProcess],
) -> Iterator[Captured]:
    """Table items with rows that no start reads, under a running capture that reads slowly."""
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("slow")
    with new_database(postgres) as dsn, under_capture(postgres, kafka, dsn, name, folder, SMALL, [ITEMS]) as made:
        made.settings = {"snapshot": SLOW}
        made.query("INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, %s) AS n", ROWS)
        running.append(made.start())
        made.await_caught_up()
        yield made


def keys_since(captured: Captured, count: int) -> list[int]:
    """Of what was published after the first `count` changes."""
    return [int(change.key["id"]) for change in captured.changes()[count:]]


# ---- nothing to talk to


def test_where_capture_has_never_run_it_is_said(items: Captured) -> None:
    items.config()
    for words in (["start"], ["status"], ["pause"], ["heal"]):
        done = snapshot(items, *words)
        assert done.returncode == 1
        assert f"capture has never run on prefix {items.name}" in done.stderr
        assert "`cdc run`" in done.stderr


def test_a_daemon_that_does_not_run_is_said_and_obeys_later(items: Captured) -> None:
    items.query("INSERT INTO items VALUES (1, 'x')")
    process = items.start()
    items.await_caught_up()
    process.terminate()
    done = snapshot(items, "start", "--timeout", "0.5")
    assert done.returncode == 7
    assert "capture has not answered in 0.5 s" in done.stderr and "check that `cdc run` is running" in done.stderr
    items.start()
    eventually(lambda: len(items.changes()) == 2, 90.0, "the row is published again")


# ---- what is read


def test_a_table_that_was_never_read_has_no_status(slow: Captured) -> None:
    assert said(snapshot(slow, "status", "--json")) == [{"tables": []}]
    assert "has had a snapshot yet" in snapshot(slow, "status").stdout


def test_a_condition_reads_the_rows_for_which_it_is_true(slow: Captured) -> None:
    before = len(slow.changes())
    done = snapshot(slow, "start", "--table", ITEMS, "--where", "id % 150 = 0 AND name LIKE 'name %'")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"begun: {ITEMS}"
    assert f"{ITEMS}: done, 4 rows" in done.stdout
    assert keys_since(slow, before) == [150, 300, 450, 600]


def test_a_range_begins_above_its_first_key_and_ends_with_its_last(slow: Captured) -> None:
    before = len(slow.changes())
    done = snapshot(slow, "start", "--table", ITEMS, "--after", "9", "--up-to", "[12]")
    assert (done.returncode, done.stderr) == (0, "")
    assert keys_since(slow, before) == [10, 11, 12]


def test_machines_are_told_every_step(slow: Captured) -> None:
    lines = said(snapshot(slow, "start", "--json"))
    answer, *steps = lines
    assert (answer["what"], answer["is_accepted"], answer["tables"]) == ("answer", True, [ITEMS])
    assert {step["status"] for step in steps} <= {"waiting", "running", "done"}
    rows = [step["done"] for step in steps]
    assert rows == sorted(rows)
    assert (steps[-1]["status"], steps[-1]["done"], steps[-1]["name"]) == ("done", ROWS, ITEMS)
    table = status(slow)
    assert (table["status"], table["done"], table["total"]) == ("done", ROWS, ROWS)


# ---- while it runs


def test_it_is_paused_goes_on_and_is_cancelled(slow: Captured) -> None:
    with started(slow, "start") as waiting:
        eventually(lambda: 0 < rows_published(slow) < ROWS, 90.0, "some rows are published")
        paused = snapshot(slow, "pause", "--table", ITEMS)
        assert (paused.returncode, paused.stdout) == (0, f"paused: {ITEMS}\n")
        table = status(slow)
        assert table["status"] == "paused"
        assert status(slow)["done"] == table["done"] < ROWS
        assert snapshot(slow, "resume").returncode == 0
        eventually(lambda: rows_published(slow) > table["done"], 90.0, "it goes on")
        assert snapshot(slow, "cancel").returncode == 0
        out, error = waiting.communicate(timeout=30)
    assert waiting.returncode == 1
    assert f"{ITEMS}: paused" in out and f"{ITEMS}: cancelled" in out
    assert f"the snapshot of {ITEMS} was cancelled" in error
    refused = snapshot(slow, "cancel")
    assert (refused.returncode, "there is no snapshot to cancel" in refused.stderr) == (1, True)


def test_ctrl_c_leaves_it_running(slow: Captured) -> None:
    before = len(slow.changes())
    with started(slow, "start") as waiting:
        assert waiting.stdout
        assert waiting.stdout.readline() == f"begun: {ITEMS}\n"
        assert waiting.stdout.readline().startswith((f"{ITEMS}: waiting", f"{ITEMS}: running"))
        waiting.send_signal(signal.SIGINT)
        out, error = waiting.communicate(timeout=30)
    assert (waiting.returncode, error) == (130, "")
    assert "the snapshot continues" in out
    eventually(lambda: status(slow)["status"] == "done", 90.0, "it ends by itself")
    assert sorted(keys_since(slow, before)) == list(range(1, ROWS + 1))


def test_a_capture_that_is_killed_is_waited_for(slow: Captured, running: list[CaptureProcess]) -> None:
    before = len(slow.changes())
    with started(slow, "start") as waiting:
        eventually(lambda: 0 < rows_published(slow) < ROWS, 90.0, "some rows are published")
        running.pop().kill()
        running.append(slow.start())
        out, error = waiting.communicate(timeout=60)
    assert (waiting.returncode, error) == (0, "")
    assert f"{ITEMS}: done, 600 rows" in out
    assert keys_since(slow, before) == list(range(1, ROWS + 1)), "none twice"


def test_a_newer_snapshot_takes_the_place_of_one_that_is_waited_for(slow: Captured) -> None:
    with started(slow, "start") as waiting:
        eventually(lambda: 0 < rows_published(slow) < ROWS, 90.0, "some rows are published")
        newer = snapshot(slow, "start", "--no-wait")
        assert (newer.returncode, newer.stdout) == (0, f"begun: {ITEMS}\n")
        _, error = waiting.communicate(timeout=30)
    assert waiting.returncode == 1
    assert f"the snapshot of {ITEMS} was replaced: another snapshot of the table has begun" in error


@pytest.mark.promise(3)
def test_beside_a_workload_every_row_is_read_again(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 1500)
    captured.start()
    captured.await_caught_up()
    with Workload(captured.dsn, seed=4, clients=3, pause_s=0.01):
        done = snapshot(captured, "start")
        assert (done.returncode, done.stderr) == (0, "")
    assert all(f"{table}: done" in done.stdout for table in captured.tables)
    captured.await_caught_up()
    captured.judge()


# ---- a gap


@pytest.mark.promise(4)
def test_a_gap_is_healed_by_command(items: Captured) -> None:
    items.query("INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, 20) AS n")
    process = items.start()
    items.await_caught_up()
    refused = snapshot(items, "heal")
    assert (refused.returncode, "there is no gap to heal" in refused.stderr) == (1, True)
    process.terminate()
    items.query("SELECT pg_drop_replication_slot(%s)", items.name)
    items.query("DELETE FROM items WHERE id <= 5")
    items.query("INSERT INTO items VALUES (21, 'later')")
    items.start().await_said("state GAP")
    assert snapshot(items, "status").returncode == 0, "it can be asked all the same"
    done = snapshot(items, "heal")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{ITEMS}: done, 16 rows compared, 6 published, deleted 5 rows that no longer exist" in done.stdout
    items.await_caught_up()
    assert [change.key["id"] for change in items.changes() if change.version >> 48 == 2] == [21, 1, 2, 3, 4, 5]
    assert [status(items)[name] for name in ("status", "done", "published")] == ["done", 16, 6]


# ---- what can't be done


def test_an_unknown_table_is_refused(slow: Captured) -> None:
    done = snapshot(slow, "start", "--table", "public.other")
    assert done.returncode == 1
    assert "refused: table public.other is not captured" in done.stderr


def test_a_condition_that_is_no_sql_fails_with_its_reason(slow: Captured) -> None:
    done = snapshot(slow, "start", "--table", ITEMS, "--where", "colour = 'red'")
    assert done.returncode == 1
    assert f"the snapshot of {ITEMS} has failed: " in done.stderr and "colour" in done.stderr
    assert "Traceback" not in done.stderr
    assert status(slow)["status"] == "failed"


def test_a_key_of_other_columns_is_refused(slow: Captured) -> None:
    done = snapshot(slow, "start", "--table", ITEMS, "--after", '["1", "2"]')
    assert done.returncode == 1
    assert "refused: the key of public.items has 1 column (id), but the range names 2" in done.stderr


# ---- a new store


@pytest.mark.promise(6)
def test_a_store_that_did_not_exist_is_filled_from_the_topics_alone(
    items: Captured, redis: str, tmp_path: Path
) -> None:
    """Capture does not even run. The demo's test fills one with fresh rows, beside capture and a workload."""
    items.settings = {
        "sinks": {"cache": {"url": redis}},
        "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
    }
    items.query("INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, 50) AS n")
    process = items.start()
    items.await_caught_up()
    eventually(lambda: status(items)["status"] == "done", 90.0, "the rows are published")
    items.query("UPDATE items SET name = 'new' WHERE id = 50")
    items.await_caught_up()
    process.terminate()
    lines = said(snapshot(items, "start", "--sink", "cache", "--json"))
    assert lines[-1] == {"what": "said", "text": "filled: cache"}
    assert {line["what"] for line in lines} == {"said", "sink"}, "no rows of the source were asked for"
    assert [line["status"] for line in lines if line["what"] == "sink"][-1] == "done"
    config = load_config(items.folder / "watershed.yml")
    assert not Checkpoints(str(tmp_path / "checkpoints"), items.name, "cache").is_locked()
    (schema,) = read_captured(config).schemas.values()
    assert [row.row["name"] for row in stored_rows(config, "cache", schema)] == [
        *(f"name {n}" for n in range(1, 50)),
        "new",
    ]
    again = snapshot(items, "start", "--sink", "cache")
    assert again.returncode == 1
    assert "the cache store already holds generation 1" in again.stderr and "--fresh" in again.stderr

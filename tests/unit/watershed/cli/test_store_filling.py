"""Which stores may be filled, and the process that fills them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.config.config_file import Config, load_config
from cdc.model.errors import ConfigError
from cdc.model.sink_records import SinkRecord
from sinks.errors import SinkError
from spark_jobs.generations import Checkpoints
from tests.support.sink_job import write_config
from tests.support.waiting import eventually
from watershed.cli.store_filling import SinkProcess, Store, generation_to_watch, read_store

# In place of `cdc`: says what it was called with, then does as its first argument tells.
OBEDIENT = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)
FAILING = "import sys; print('error: there is no Java'); sys.exit(3)"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    warehouse = {
        "catalog_uri": f"jdbc:sqlite:{tmp_path}/warehouse/catalog.db",
        "location": str(tmp_path / "warehouse" / "tables"),
    }
    return load_config(write_config(tmp_path, "127.0.0.1:1", "shop", {"warehouse": warehouse}))


def process(config: Config, program: str) -> SinkProcess:
    return SinkProcess(config, Path("shop.yml"), ["warehouse"], [sys.executable, "-c", program])


def sink_record(generation: int, applied_lsn: int, sink: str = "warehouse") -> SinkRecord:
    return SinkRecord(
        sink=sink,
        generation=generation,
        end_offsets={},
        applied_lsn=applied_lsn,
        epoch=1,
        commit_ts_us=0,
        applied_ts_us=0,
        sweeps={},
        written=0,
        stale=0,
    )


# ---- may it be filled


def test_a_store_that_is_not_there_holds_nothing_and_nobody_fills_it(config: Config) -> None:
    assert read_store(config, "warehouse") == Store("warehouse", None, is_running=False)


def test_who_runs_the_sink_is_seen(config: Config) -> None:
    with Checkpoints(config.spark.checkpoint_location, "shop", "warehouse").locked(lambda: True):
        assert read_store(config, "warehouse").is_running


@pytest.mark.parametrize("name", ["search", "nope", "model_fields"])
def test_a_sink_without_a_section_is_refused_with_those_there_are(config: Config, name: str) -> None:
    with pytest.raises(ConfigError, match=f"no sink '{name}'") as refused:
        read_store(config, name)
    assert refused.value.hint == "sinks with a section are: warehouse"


def store(generation: int | None, *, is_running: bool = False) -> Store:
    return Store("warehouse", generation, is_running)


def test_a_new_store_gets_a_generation_above_all_that_ever_were() -> None:
    gone = [sink_record(1, 900), sink_record(2, 950), sink_record(7, 950, "search")]
    assert generation_to_watch(store(None), [], is_fresh=False) == 1
    assert generation_to_watch(store(None), gone, is_fresh=True) == 3, "what the lost store had applied counts nothing"


def test_a_filling_that_did_not_come_to_its_end_goes_on() -> None:
    assert generation_to_watch(store(2), [sink_record(1, 900), sink_record(2, 0)], is_fresh=False) == 2
    assert generation_to_watch(store(2), [sink_record(1, 900)], is_fresh=False) == 2


def test_a_store_that_was_filled_takes_fresh_rows_and_nothing_else() -> None:
    filled = [sink_record(2, 900)]
    assert generation_to_watch(store(2), filled, is_fresh=True) == 2
    assert generation_to_watch(store(2, is_running=True), filled, is_fresh=True) == 2
    with pytest.raises(SinkError, match="already holds generation 2") as refused:
        generation_to_watch(store(2), filled, is_fresh=False)
    assert "--fresh" in refused.value.hint


# ---- the process


def test_the_process_is_the_command_for_these_sinks_and_ends_when_it_is_told(config: Config) -> None:
    with process(config, OBEDIENT) as child:
        eventually(lambda: "warehouse" in child.log.read_text(), 20, "it runs")
        child.check()
        assert child.log.read_text() == "['sink', 'run', 'warehouse', '--config', 'shop.yml', '--http-port', '0']\n"
    with pytest.raises(SinkError, match="exit code -15"):
        child.check()


def test_one_that_ends_by_itself_is_an_error_with_its_last_words(config: Config) -> None:
    with process(config, FAILING) as child, pytest.raises(SinkError) as ended:
        eventually(child.check, 20)
    assert ended.value.message == "the job of warehouse ended by itself (exit code 3)"
    assert str(child.log) in ended.value.hint and "there is no Java" in ended.value.hint


def test_one_that_does_not_follow_is_killed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watershed.cli.store_filling.END_S_MAX", 0.2)
    with process(config, STUBBORN) as child:
        eventually(lambda: "deaf" in child.log.read_text(), 20, "it runs")
    with pytest.raises(SinkError, match="exit code -9"):
        child.check()


def test_it_ends_with_its_parent(tmp_path: Path, config: Config) -> None:
    program = f"""
import os, signal
from pathlib import Path
from cdc.config.config_file import load_config
from watershed.cli.store_filling import SinkProcess
config = load_config(Path({str(tmp_path / "watershed.yml")!r}))
says_its_pid = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
SinkProcess(config, Path("x"), ["warehouse"], [{sys.executable!r}, "-c", says_its_pid]).__enter__()
signal.pause()
"""
    log = Path(config.spark.checkpoint_location) / "shop" / "warehouse" / "bootstrap.log"
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        eventually(lambda: log.exists() and log.read_text().endswith("\n"), 20, "the child runs")
        child = int(log.read_text())
        os.kill(parent.pid, signal.SIGKILL)
    eventually(lambda: not is_running(child), 20, "the child has ended")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False

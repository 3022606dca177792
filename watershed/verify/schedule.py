"""Scheduled comparisons, which a sinks' job starts (`verify.every`). Each is a separate process, `cdc verify`, at a low
priority, so that it does not slow the job's driver down. It ends with the job."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from cdc.config.config_file import Config
from cdc.config.table_choice import matches
from cdc.kafka.compacted import read_latest
from cdc.model.comparisons import ComparisonRecord
from cdc.model.errors import WatershedError
from cdc.model.topics import Topics
from watershed.status.children import CDC, end_with_parent
from watershed.verify.history import due_us

log = structlog.get_logger(__name__)

NICENESS: Final = 10
PAUSE_S: Final = 15.0  # between two looks at the history; less where comparisons are more frequent
FAILED_PAUSE_S: Final = 60.0
COMPARED: Final = (0, 5, 6)  # exit codes: nothing differs, drift, partial
ERROR_CHARS: Final = 500


def read_history(config: Config, sink: str) -> ComparisonRecord | None:
    """Raises WatershedError."""
    topic, key = Topics(config.topics.prefix).progress, ComparisonRecord.key_of(sink)
    value = read_latest(config.kafka, topic).get(key)
    return None if value is None else ComparisonRecord.decode(value, f"topic {topic}, key {key}")


class VerifySchedule:
    """Starts comparisons of these sinks when they are due, in a thread. The history in the topics decides what is due,
    so a restart starts none, and of two jobs one compares."""

    def __init__(self, config: Config, config_file: Path, sinks: Sequence[str]) -> None:
        every_s = config.verify.every_s
        assert every_s is not None, "the caller has looked"
        self._config = config
        self._every_s = every_s
        tables = [
            table
            for table in config.source.stored_table_ids
            if any(matches(pattern, table) for pattern in config.verify.tables)
        ]
        has_patterns = bool(config.source.choice.patterns)  # the process that compares knows what they take
        self._sinks = [n for n in sinks if has_patterns or any(config.sinks[n].holds(table) for table in tables)]
        self._config_file = config_file
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="comparisons", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def command(self, sinks: Sequence[str]) -> list[str]:
        """Returns the command that compares these sinks."""
        wanted = self._config.verify
        words = [*CDC, "verify", "--scheduled", "--json", "--config", str(self._config_file)]
        words += ["--source-share", str(wanted.source_share)]
        words += [word for name in sinks for word in ("--sink", name)]
        words += [word for pattern in wanted.tables for word in ("--table", pattern)]
        return words if wanted.sample is None else [*words, "--sample", str(wanted.sample)]

    def due(self, now_us: int) -> list[str]:
        """The sinks that are to be compared now. Raises WatershedError."""
        return [name for name in self._sinks if due_us(read_history(self._config, name), self._every_s) <= now_us]

    def _run(self) -> None:
        pause_s = min(PAUSE_S, self._every_s / 4)
        while not self._ended.wait(pause_s):
            try:
                due = self.due(time.time_ns() // 1000)
            except WatershedError as error:
                log.warning("history of comparisons can't be read", error=error.message)
                continue
            if due and not self._compare(due):
                self._ended.wait(FAILED_PAUSE_S)

    def _compare(self, sinks: Sequence[str]) -> bool:
        began = time.monotonic()
        done = subprocess.run(
            self.command(sinks),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            preexec_fn=lowered(),
        )
        took_s = round(time.monotonic() - began, 1)
        if done.returncode in COMPARED:
            what = {0: "nothing differs", 5: "rows differ", 6: "not everything was compared"}[done.returncode]
            log.info("stores were compared", sinks=" ".join(sinks), result=what, took_s=took_s)
            return True
        message = done.stderr.decode(errors="replace").strip()[-ERROR_CHARS:]
        log.warning("stores were not compared", sinks=" ".join(sinks), exit_code=done.returncode, error=message)
        return False


def lowered() -> Callable[[], None]:
    """Returns what a process of a comparison calls before it executes its program: it ends with the thread that starts
    it, and gives way to the others."""
    ask = end_with_parent()

    def lower() -> None:
        if ask is not None:
            ask()
        os.nice(NICENESS)

    return lower

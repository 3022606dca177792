"""Runs `cdc sink run` as a process, and reads what it published about itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from cdc.config.config_file import Config, load_config
from cdc.kafka.compacted import read_latest
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.topics import Topics
from tests.conftest import INTERPRETED
from tests.support.config_files import replace_text
from tests.support.waiting import eventually

START_S_MAX = 120.0


class SinkJob:
    """Started by entering; killed at the end if it still runs."""

    def __init__(self, config_path: Path, *names: str, log_level: str = "debug", module: str = "watershed") -> None:
        self._module = module
        self.config_path = config_path
        self.config: Config = load_config(config_path)
        self.log = config_path.parent / f"{'-'.join(names)}.{time.monotonic_ns()}.log"
        self._arguments = ["sink", "run", *names, "--config", str(config_path), "--log-level", log_level]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()
        if error is not None:
            error.add_note(f"log of the job:\n{self.said()}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to Python and the JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; (exit code, seconds it took)."""
        begun = time.monotonic()
        self.process.terminate()
        return self.process.wait(30), time.monotonic() - begun

    def record(self, sink: str) -> SinkRecord | None:
        """The serving generation's."""
        return sink_record(self.config, sink)

    def wait_applied(self, lsn: int, *sinks: str, deadline_s: float = START_S_MAX) -> dict[str, SinkRecord]:
        """Until each sink has applied the LSN."""
        seen: dict[str, SinkRecord | None] = {}

        def applied() -> bool:
            code = self.process.poll()
            assert code is None, f"the job ended with exit code {code}"
            seen.update({sink: self.record(sink) for sink in sinks})
            return all(record is not None and record.applied_lsn >= lsn for record in seen.values())

        eventually(applied, deadline_s, lambda: f"LSN {lsn} applied; seen: {seen}")
        return {sink: record for sink, record in seen.items() if record is not None}

    def wait_said(self, text: str, deadline_s: float = START_S_MAX) -> None:
        eventually(lambda: text in self.said(), deadline_s, f"the log says {text!r}")


def sink_record(config: Config, sink: str) -> SinkRecord | None:
    records = [
        SinkRecord.decode(value, key)
        for key, value in read_latest(config.kafka, Topics(config.topics.prefix).progress).items()
        if key.startswith(f"sink/{sink}/")
    ]
    return newest(records, sink)


def write_config(
    folder: Path,
    bootstrap_servers: str,
    prefix: str,
    sinks: Mapping[str, Any],
    tables: Sequence[str] = ("public.customers",),
    **spark: Any,
) -> Path:
    """A configuration file; `sinks` as in the file."""
    content = {
        "source": {"dsn": "postgresql://nobody@127.0.0.1/none", "tables": list(tables)},
        "kafka": {"bootstrap_servers": bootstrap_servers},
        "topics": {"prefix": prefix},
        "http": {"port": None, "sink_port": None, "view_port": None},
        "sinks": dict(sinks),
        "spark": {
            "checkpoint_location": str(folder / "checkpoints"),
            "warehouse_trigger_ms": 500,
            "options": INTERPRETED,
            **spark,
        },
    }
    return replace_text(folder / "watershed.yml", yaml.safe_dump(content))

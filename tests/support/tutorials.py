"""Runs the marked blocks of a tutorial in order, against the servers of the test run.

A comment before a block says how it is run:

    <!-- run: sql NAME -->      the statements, by the superuser in that database
    <!-- run: file NAME -->     the file is written; a YAML file is merged into the one that is there
    <!-- run: sh -->            the commands, which succeed
    <!-- run: sh until -->      again and again, until the output has the lines of the following block of text
    <!-- run: sh exactly -->   the same, until the output is that text and nothing else
    <!-- run: background -->    a command that runs on
    <!-- run: restart -->       the command is stopped by SIGINT, and started again
    <!-- run: sink -->          a command that starts a sink; those of several tutorials are run as one

Only addresses, and the names of the shop and of the reports' database, are replaced, so that test runs do not meet.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from psycopg.conninfo import make_conninfo

from tests.support.waiting import eventually

TUTORIALS: Final = Path(__file__).parents[2] / "docs/tutorials"
OUTPUT_S_MAX: Final = 180.0
_STEP = re.compile(
    r"^<!-- run: (?P<kind>[a-z .]+) -->\n```\w+\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A block of code that is run."""

    kind: str
    code: str
    output: str  # what the command prints: parts of it in lines, or all of it


def steps(page: str) -> list[Step]:
    """Returns the marked blocks of docs/tutorials/<page>.md."""
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    found = [Step(step["kind"], step["code"], step["output"] or "") for step in _STEP.finditer(text)]
    assert len(found) == text.count("<!-- run: "), f"a marker of {page} has no block of code behind it"
    return found


@dataclass
class Tutorial:
    """The reader: a folder, servers, and the commands that run on."""

    folder: Path
    superuser_dsn: str
    names: Mapping[str, str]  # regular expressions, and what replaces their matches
    settings: Mapping[str, Any]  # of the configuration file, for the test only
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, step: Step) -> None:
        kind, _, argument = step.kind.partition(" ")
        code = self.own(step.code)
        match kind:
            case "sql":
                self._execute(self.own(argument), code)
            case "file":
                self._write(self.folder / argument, code)
            case "sh" if argument in ("until", "exactly"):
                self._until(code, self.own(step.output), is_whole=argument == "exactly")
            case "sh":
                self._shell(code)
            case "background":
                self.start(code)
            case "restart":
                self.stop(code)
                self.start(code)
            case _:
                raise AssertionError(f"<!-- run: {step.kind} --> is not known")

    def own(self, text: str) -> str:
        """The text with this run's addresses and names."""
        for pattern, name in self.names.items():
            text = re.sub(pattern, name, text)
        return text

    def start(self, command: str) -> None:
        with (self.folder / f"{len(self._running)}.log").open("ab") as log:
            self._running[command] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, command: str) -> None:
        """Ctrl-C."""
        process = self._running.pop(command)
        process.send_signal(signal.SIGINT)
        process.wait(30)

    def end(self) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def logs(self) -> str:
        """The last lines of what the commands have printed that run on."""
        texts = [file.read_text(errors="replace")[-3000:] for file in sorted(self.folder.glob("*.log"))]
        return "\n----\n".join(texts)

    def _execute(self, database: str, statements: str) -> None:
        with psycopg.connect(make_conninfo(self.superuser_dsn, dbname=database), autocommit=True) as connection:
            for statement in re.findall(r"\S.*?;(?=\n)", statements, re.DOTALL):
                connection.execute(statement.encode())

    def _write(self, file: Path, text: str) -> None:
        if file.suffix == ".yml":
            there = yaml.safe_load(file.read_text()) if file.exists() else self.settings
            text = yaml.safe_dump(merged(there, yaml.safe_load(text)), sort_keys=False)
        file.write_text(text, encoding="utf-8")

    def _shell(self, script: str) -> str:
        for name, value in re.findall(r"^export (\w+)=(\S+)$", script, re.MULTILINE):
            self.environment[name] = value
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=OUTPUT_S_MAX,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def _until(self, script: str, output: str, *, is_whole: bool) -> None:
        seen = ""

        def is_printed() -> bool:
            nonlocal seen
            try:
                seen = self._shell(script)
            except AssertionError as error:  # the store is not there yet
                seen = str(error)
                return False
            if is_whole:
                return _plain(seen) == _plain(output)
            return all(_plain(line) in _plain(seen) for line in output.splitlines())

        eventually(is_printed, OUTPUT_S_MAX, lambda: f"{script} prints\n{output}\nit printed\n{seen}\n{self.logs()}")


def merged(there: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both configurations as one; sections are merged, other values replaced."""
    both = dict(there)
    for name, value in more.items():
        both[name] = merged(both[name], value) if isinstance(value, dict) and name in both else value
    return both


def _plain(text: str) -> str:
    """The text without the lines of tables and with single blanks."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text).split())


def with_our_commands(environment: Mapping[str, str], folders: Sequence[Path]) -> dict[str, str]:
    """The environment in which `cdc`, `python` and the servers' clients are found."""
    path = os.pathsep.join([str(Path(sys.executable).parent), *map(str, folders), environment["PATH"]])
    return {**environment, "PATH": path}

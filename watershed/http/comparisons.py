"""Comparisons and repairs that an operator starts over HTTP: one of each at a time, in processes of their own, which
end with this one. Their progress and results are kept in memory, and are lost when this process ends.
"""

import json
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.config_file import Config
from cdc.config.secrets import hidden, secret_texts
from cdc.config.stores import sink_config
from cdc.model.audit import AuditRecord
from watershed.http.access import Caller, refused_values
from watershed.http.answers import failure, json_answer
from watershed.http.operations import TABLES_MAX, Operation, RefusedOperationError, Started, Wanted
from watershed.status.children import CDC
from watershed.status.model import Node
from watershed.verify.schedule import COMPARED, lowered

log = structlog.get_logger(__name__)

Action = Literal["verify", "repair"]
KEPT: Final = 20  # operations that have ended
DIFFERENCES_MAX: Final = 100  # of each table and sink
ERROR_LINES: Final = 20
LINE_CHARS_MAX: Final = 1_000


class CompareRequest(Wanted):
    """What is compared; all by default."""

    sinks: tuple[str, ...] = Field(default=(), max_length=TABLES_MAX)
    tables: tuple[str, ...] = Field(default=(), max_length=TABLES_MAX)  # schema.table, or a pattern such as public.*

    @field_validator("sinks", "tables")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name or name.startswith("-") for name in names):  # they are arguments of a command
            raise ValueError("a name is empty, or begins with -")
        return tuple(dict.fromkeys(names))

    def words(self) -> list[str]:
        """Returns the command's options."""
        sinks = [word for name in self.sinks for word in ("--sink", name)]
        return sinks + [word for name in self.tables for word in ("--table", name)]


class VerifyRequest(CompareRequest):
    """What is compared, and how many rows of each side."""

    sample: int | None = Field(default=None, ge=1)

    def words(self) -> list[str]:
        sample = [] if self.sample is None else ["--sample", str(self.sample)]
        return super().words() + sample


class Step(Node):
    """How far one table is."""

    sink: str  # "": the source is read
    table: str
    step: str
    done: int
    total: int


class Run(Node):
    """A comparison or a repair."""

    id: str
    action: Action
    who: str
    status: Literal["running", "done", "failed"]
    begun_unix_seconds: float
    seconds: float
    progress: tuple[Step, ...]
    result: dict[str, Any] | None  # as `cdc verify --json` prints it, with the first differences
    error: str = ""
    next: str = ""


@dataclass(slots=True)
class _Running:
    """One process. Its thread writes, requests read."""

    action: Action
    who: str
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    begun_s: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    error_lines: deque[str] = field(default_factory=lambda: deque(maxlen=ERROR_LINES))
    result: dict[str, Any] | None = None
    error: str = ""

    def shown(self) -> Run:
        end = time.monotonic() if self.ended is None else self.ended
        return Run(
            id=self.identity,
            action=self.action,
            who=self.who,
            status="running" if self.ended is None else "failed" if self.error else "done",
            begun_unix_seconds=self.begun_s,
            seconds=round(end - self.began, 3),
            progress=tuple(self.steps.copy().values()),
            result=self.result,
            error=self.error,
            next="the log of the server has more; `cdc verify` does the same" if self.error else "",
        )


class Comparisons:
    """The comparisons and repairs of one process."""

    def __init__(
        self,
        config: Callable[[], Config],
        file: Path,
        note: Callable[[AuditRecord], None],
        command: Sequence[str] = CDC,
    ) -> None:
        """`config`: as it is now. `note`: is called in a thread when one has ended. `command`: that of `cdc`."""
        self._config = config
        self._file = file
        self._command = command
        self._note = note
        self._lock = threading.Lock()
        self._runs: dict[str, _Running] = {}  # by id, the oldest first

    def operations(self) -> Sequence[Operation[Any]]:
        return [
            Operation("/v1/verify", "verify", "Compare stores with the source.", VerifyRequest,
                      partial(self._start, "verify"), Started, 202),
            Operation("/v1/repair", "repair", "Compare, and have what differs published again.", CompareRequest,
                      partial(self._start, "repair"), Started, 202),
        ]  # fmt: skip

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/operations/{id}", self._shown)]

    def _start(self, action: Action, caller: Caller, wanted: CompareRequest, _: Mapping[str, str]) -> Started:
        config = self._config()
        for name in wanted.sinks:
            sink_config(config.sinks, name)
        with self._lock:
            for one in self._runs.values():
                if one.ended is None and one.action == action:
                    hint = f"wait for it: GET /v1/operations/{one.identity}"
                    raise RefusedOperationError(f"a {action} is under way already", hint)
            run = _Running(action, caller.name)
            self._runs[run.identity] = run
            over = len(self._runs) - KEPT
            for old in [one.identity for one in self._runs.values() if one.ended is not None][: max(0, over)]:
                del self._runs[old]
        words = [*self._command, action, "--json", "--progress", "--config", str(self._file), *wanted.words()]
        threading.Thread(target=self._run, args=(run, words), name=f"http: {action}", daemon=True).start()
        return Started(id=run.identity)

    def _run(self, run: _Running, words: Sequence[str]) -> None:
        try:
            with subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=lowered(),
            ) as process:
                assert process.stdout is not None and process.stderr is not None
                reader = threading.Thread(target=self._follow, args=(run, process.stderr), daemon=True)
                reader.start()
                output = process.stdout.read()
                code = process.wait()
                reader.join()
            if code in COMPARED:
                run.result = _shortened(json.loads(output))
            else:
                run.error = "\n".join(run.error_lines) or f"the process ended with exit code {code}"
        except Exception as error:  # whatever it is, nothing was compared
            log.exception("a comparison has failed", action=run.action)
            run.error = f"the {run.action} could not be run: {error!r}"
        finally:
            run.ended = time.monotonic()
            self._note(_end_record(run))

    def _follow(self, run: _Running, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").strip()
            try:
                step = Step.model_validate_json(text)
                run.steps[step.sink, step.table] = step
            except ValueError:
                run.error_lines.append(hidden(text, secret_texts(self._config()))[:LINE_CHARS_MAX])

    async def _shown(self, request: Request) -> Response:
        if (refusal := refused_values(self._config().http, request)) is not None:
            return refusal
        found = self._runs.get(request.path_params["id"])
        if found is None:
            what = (
                "this process knows no such operation: it was restarted since, which ends operations, or has done many"
            )
            return failure(404, what, "start it again; `cdc status` has the results of comparisons that ended")
        return json_answer(found.shown())


def _end_record(run: _Running) -> AuditRecord:
    result = run.error or f"done: {_done(run)}"
    return AuditRecord(
        at_us=time.time_ns() // 1000,
        who=run.who,
        role="operate",
        address="",
        action=f"{run.action} ended",
        path=f"/v1/operations/{run.identity}",
        arguments={},
        result=result[:LINE_CHARS_MAX],
    )


def _done(run: _Running) -> str:
    found = run.result or {}
    repaired = f"{found.get('repaired', 0)} rows were repaired, " if run.action == "repair" else ""
    return f"{repaired}{found.get('drift', 0)} rows differ, {found.get('undecided', 0)} are undecided"


def _shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the result with the first differences of each table and sink."""
    tables = [
        {name: value[:DIFFERENCES_MAX] if name == "differences" else value for name, value in table.items()}
        for table in result["tables"]
    ]
    return {**result, "tables": tables}

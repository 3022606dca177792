"""Other pipelines beside this one: the processes of `http.pipelines` are asked for their status, and what they say is
summed up. A browser never asks them, and gets none of their tokens.

They are asked when somebody asks this server, each by itself: one that does not answer holds up no other, and its last
answer is kept.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.http_settings import HttpConfig, HttpPipeline
from cdc.model.errors import UnreachableError, WatershedError
from watershed.http.access import refused_values
from watershed.http.answers import json_answer
from watershed.http.bounded_work import BoundedWork
from watershed.http.json_fetch import Fetch, fetch_json
from watershed.status.model import Node, Status

ASK_PAUSE_S: Final = 2.0  # between two questions to the same pipeline
ASK_S_MAX: Final = 8.0
WAIT_S: Final = 1.0  # for answers under way; those that are later are shown next time
STATUS_BYTES_MAX: Final = 32_000_000  # of some ten thousand tables
PROBLEMS_SHOWN: Final = 3


class ProblemElsewhere(Node):
    name: str  # of the table, sink or view; otherwise empty
    severity: str
    message: str
    next: str


class Summary(Node):
    """The status of a pipeline in some numbers."""

    unix_seconds: float
    prefix: str
    database: str | None
    capture: str  # its state
    lag_seconds: float | None  # of what is furthest behind
    furthest: str  # that: capture, or a sink
    tables: int
    stopped: int
    stores: int
    dead_letters: int
    errors: int
    warnings: int
    problems: tuple[ProblemElsewhere, ...]  # the worst


class PipelineElsewhere(Node):
    """A pipeline. `error` and `next` say why there is no answer now; the summary is then the last one, or null."""

    name: str  # as in http.pipelines; empty: that of this server
    console: str
    error: str
    next: str
    summary: Summary | None


class Pipelines(Node):
    """This pipeline and those of http.pipelines."""

    pipelines: tuple[PipelineElsewhere, ...]


class _Read(BaseModel):
    """What is read of a status. That of another version may have more."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


class _Source(_Read):
    database: str | None


class _Capture(_Read):
    state: str
    lag_seconds: float | None


class _Table(_Read):
    state: str


class _Sink(_Read):
    sink: str
    lag_seconds: float | None
    dead_letters: int


class _Problem(_Read):
    name: str
    severity: str
    message: str
    next: str


class _Status(_Read):
    prefix: str
    unix_seconds: float
    source: _Source
    capture: _Capture
    tables: tuple[_Table, ...]
    sinks: tuple[_Sink, ...]
    problems: tuple[_Problem, ...]


def summary_of(status: Any) -> Summary:
    """Returns the summary of a Status, or of the JSON of one. Raises ValidationError."""
    found = _Status.model_validate(status)
    lags = {"capture": found.capture.lag_seconds, **{one.sink: one.lag_seconds for one in found.sinks}}
    known = {name: lag_s for name, lag_s in lags.items() if lag_s is not None}
    furthest = max(known, key=lambda name: known[name], default="")
    worst = sorted(found.problems, key=lambda one: one.severity != "error")
    errors = sum(one.severity == "error" for one in worst)
    return Summary(
        unix_seconds=found.unix_seconds,
        prefix=found.prefix,
        database=found.source.database,
        capture=found.capture.state,
        lag_seconds=known.get(furthest),
        furthest=furthest,
        tables=len(found.tables),
        stopped=sum(one.state == "stopped" for one in found.tables),
        stores=len(found.sinks),
        dead_letters=sum(one.dead_letters for one in found.sinks),
        errors=errors,
        warnings=len(worst) - errors,
        problems=tuple(ProblemElsewhere(**one.model_dump()) for one in worst[:PROBLEMS_SHOWN]),
    )


class _Elsewhere:
    """One other pipeline, and what it said last. Used by the server's event loop only."""

    def __init__(self, name: str, settings: HttpPipeline, fetch: Fetch) -> None:
        self._settings = settings
        self._fetch = fetch
        self._hint = f"check http.pipelines.{name}: url is the address of one of its processes, token that of a user"
        self._work = BoundedWork(f"asking pipeline {name}", 1, ASK_S_MAX, late=self._hint)
        self._question: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        console = settings.console or settings.url
        self.seen = PipelineElsewhere(name=name, console=console, error="", next="", summary=None)

    def ask(self) -> "asyncio.Task[None] | None":
        """Returns the question that is under way; begins one, unless the last one was a moment ago."""
        if self._question is None or self._question.done():
            if time.monotonic() - self._asked_at < ASK_PAUSE_S:
                return None
            self._question = asyncio.create_task(self._note())
        return self._question

    async def _note(self) -> None:
        try:
            found = {"summary": await self._work.run(self._read), "error": "", "next": ""}
        except WatershedError as error:
            found = {"error": error.message, "next": error.hint}
        self._asked_at = time.monotonic()
        self.seen = self.seen.model_copy(update=found)

    def _read(self) -> Summary:
        """Raises UnreachableError."""
        token, url = self._settings.token, self._settings.url
        headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
        found = self._fetch(f"{url}/v1/status", self._hint, headers, STATUS_BYTES_MAX)
        try:
            return summary_of(found)
        except ValidationError as error:
            raise UnreachableError(f"{url} answers, but not with a status of Watershed", self._hint) from error


class OtherPipelines:
    """The route."""

    def __init__(self, http: HttpConfig, status: Callable[[], Status], fetch: Fetch = fetch_json) -> None:
        """`status`: of this pipeline."""
        self._http = http
        self._status = status
        self._elsewhere = [_Elsewhere(name, one, fetch) for name, one in http.pipelines.items()]

    @property
    def is_configured(self) -> bool:
        return bool(self._elsewhere)

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/pipelines", self._answer)]

    async def _answer(self, request: Request) -> Response:
        # Other servers may show this to their users only, so it is not for everybody who reaches this one.
        if (refusal := refused_values(self._http, request)) is not None:
            return refusal
        questions = [question for one in self._elsewhere if (question := one.ask()) is not None]
        if questions:
            await asyncio.wait(questions, timeout=WAIT_S)
        own = PipelineElsewhere(name="", console="", error="", next="", summary=summary_of(self._status()))
        return json_answer(Pipelines(pipelines=(own, *(one.seen for one in self._elsewhere))))

"""The routes of the status, which answer from the last observation and wait for no server; other parts of the server
have routes of their own. And the console: static files that read the routes under /v1 from the browser, and need no
other server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cdc.model.errors import WatershedError
from watershed.http.access import caller_of
from watershed.http.answers import Failure, failed, json_answer
from watershed.http.dead_letters import DeadLetterReader
from watershed.http.long_history import HoursOfHistory
from watershed.http.metrics import CONTENT_TYPE, metrics_text
from watershed.http.models import Health, NotShown, Offered, Readiness, Shown, Sinks, Tables, User, Views
from watershed.http.openapi import description
from watershed.http.operations import Operations
from watershed.http.pipelines import OtherPipelines
from watershed.http.waits import TIMEOUT_S, TIMEOUT_S_MAX, NotShownError, Question, Waits
from watershed.status.model import Part, Problem, Status
from watershed.status.position import position_of_stores
from watershed.status.trend import Recent


@dataclass(frozen=True, slots=True)
class Scope:
    """The parts of the pipeline for which a process answers."""

    parts: frozenset[Part]
    names: frozenset[str] | None = None  # of sinks or views; None: all

    def reasons(self, status: Status) -> tuple[Problem, ...]:
        """Returns why the process is not ready. A sink is not ready before it has published a position, which shows
        that Spark has started and its store answers."""
        begun = {sink.sink for sink in status.sinks}
        sinks = self.names if "sink" in self.parts and self.names is not None else frozenset()
        return (
            *status.errors(self.parts, self.names),
            *(_not_begun(name) for name in sorted(sinks - begun)),
        )


CAPTURE: Final = Scope(frozenset({"source", "brokers", "capture", "table"}))


def sinks_scope(names: frozenset[str]) -> Scope:
    return Scope(frozenset({"brokers", "sink"}), names)


def views_scope(names: frozenset[str]) -> Scope:
    return Scope(frozenset({"view"}), names)


def _not_begun(sink: str) -> Problem:
    return Problem(
        part="sink",
        name=sink,
        severity="error",
        message=f"{sink} has not published a position yet",
        next="wait until Spark has started; the log of `cdc sink run` says what it waits for",
    )


class Routed(Protocol):
    """A part of the server."""

    def routes(self) -> Sequence[Route]: ...


def application(
    status: Callable[[], Status],
    scope: Scope,
    waits: Waits,
    recent: Callable[[], Recent],
    letters: DeadLetterReader,
    *parts: Routed,
    dropped: Callable[[], Mapping[str, int]] = dict,
) -> Starlette:
    """Makes the application. `status`, `recent` and `dropped` (see Telemetry) are called for each request. `parts`:
    have the other routes."""

    async def healthz(_: Request) -> Response:  # needs no thread
        return json_answer(Health(is_alive=True))

    def readyz(request: Request) -> Response:
        reasons = scope.reasons(status())
        # Without a token only the probe is answered: reasons name tables.
        shown = () if caller_of(request).role == "none" else reasons
        return json_answer(Readiness(is_ready=not reasons, reasons=shown), 503 if reasons else 200)

    def user(request: Request) -> Response:
        caller = caller_of(request)
        assert caller.role != "none", "CheckedAccess has refused it"
        return json_answer(User(name=caller.name, role=caller.role))

    def whole(_: Request) -> Response:
        return json_answer(status())

    def tables(_: Request) -> Response:
        return json_answer(Tables(tables=status().tables))

    def position(_: Request) -> Response:
        try:
            return json_answer(position_of_stores(waits.positions()))
        except WatershedError as error:
            return failed(error, 503)

    async def wait(request: Request) -> Response:
        asked = request.query_params
        if "lsn" not in asked:
            return json_answer(Failure(error="lsn is missing", next="GET /v1/wait?lsn=0/16B3748&sink=NAME"), 400)
        answer = await _waited(waits, request, tuple(asked.getlist("sink")), asked["lsn"])
        return answer if isinstance(answer, Response) else json_answer(Shown(lsn=asked["lsn"], sinks=answer))

    async def sinks(request: Request) -> Response:
        return await _refusal(waits, request, ()) or json_answer(Sinks(sinks=status().sinks))

    async def sink(request: Request) -> Response:
        name = request.path_params["name"]
        if (refusal := await _refusal(waits, request, (name,))) is not None:
            return refusal
        found = status().sinks
        for one in found:
            if one.sink == name:
                return json_answer(one)
        known = ", ".join(one.sink for one in found) or "none"
        return json_answer(Failure(error=f"no sink {name!r} has published a position", next=f"there are: {known}"), 404)

    def history(_: Request) -> Response:
        return json_answer(recent())

    async def dead_letters(request: Request) -> Response:
        try:
            return json_answer(await letters.shown_to(status(), request.headers.get("host", ""), caller_of(request)))
        except WatershedError as error:
            return json_answer(Failure(error=error.message, next=error.hint), 503)

    def metrics(_: Request) -> Response:
        now = status()
        is_ready = not scope.reasons(now)
        return Response(metrics_text(now, is_ready=is_ready, dropped=dropped()), media_type=CONTENT_TYPE)

    def offered(_: Request) -> Response:
        def has(kind: type[HoursOfHistory | OtherPipelines]) -> bool:
            return any(isinstance(part, kind) and part.is_configured for part in parts)

        return json_answer(Offered(hours=has(HoursOfHistory), pipelines=has(OtherPipelines)))

    def openapi(_: Request) -> Response:
        return JSONResponse(description(operations))

    operations = [one for part in parts if isinstance(part, Operations) for one in part.operations]
    # Plain functions run in threads of the server's, so that no request waits for another.
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/v1/user", user),
            Route("/v1/status", whole),
            Route("/v1/tables", tables),
            Route("/v1/position", position),
            Route("/v1/wait", wait),
            Route("/v1/sinks", sinks),
            Route("/v1/sinks/{name}", sink),
            *_view_routes(status),
            Route("/v1/history", history),
            Route("/v1/console", offered),
            Route("/v1/dead-letters", dead_letters),
            *(route for part in parts for route in part.routes()),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
            *console_routes(),
        ],
        exception_handlers={HTTPException: _refused},
    )


def _view_routes(status: Callable[[], Status]) -> list[Route]:
    def views(_: Request) -> Response:
        return json_answer(Views(views=status().views))

    def view(request: Request) -> Response:
        name, found = request.path_params["name"], status().views
        known = ", ".join(one.view for one in found) or "none"
        refusal = Failure(error=f"the configuration has no view {name!r}", next=f"there are: {known}")
        return next((json_answer(one) for one in found if one.view == name), json_answer(refusal, 404))

    return [Route("/v1/views", views), Route("/v1/views/{name}", view)]


async def _refusal(waits: Waits, request: Request, sinks: tuple[str, ...]) -> Response | None:
    """Returns None as soon as the LSN of the query's wait_for is shown, or if the query has none; otherwise the
    reason."""
    if "wait_for" not in request.query_params:
        return None
    answer = await _waited(waits, request, sinks, request.query_params["wait_for"])
    return answer if isinstance(answer, Response) else None


async def _waited(waits: Waits, request: Request, sinks: tuple[str, ...], lsn: str) -> tuple[str, ...] | Response:
    """Returns the sinks as soon as all of them show the LSN; otherwise the reason."""
    asked = request.query_params
    try:
        timeout_s = float(asked.get("timeout", TIMEOUT_S))
        timeline, epoch = (int(asked[name]) if name in asked else None for name in ("timeline", "epoch"))
    except ValueError:
        return json_answer(
            Failure(error="timeout, timeline and epoch are numbers", next="GET /openapi.json has all routes"), 400
        )
    if not 0 <= timeout_s <= TIMEOUT_S_MAX:
        return json_answer(
            Failure(error=f"timeout is not between 0 and {TIMEOUT_S_MAX:g} s", next="try again later"), 400
        )
    try:
        return await waits.wait_for(
            Question(
                sinks,
                lsn,
                timeline,
                asked.get("system_identifier"),
                frozenset(asked.getlist("table")),
                accepts_rejected=asked.get("accept_rejected") == "true",
                epoch=epoch,
            ),
            timeout_s,
        )
    except NotShownError as error:
        return json_answer(NotShown(error=error.message, next=error.hint, epoch=error.epoch), 504)
    except WatershedError as error:
        return failed(error)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_answer(Failure(error=error.detail, next="GET /openapi.json has all routes"), error.status_code)


FOLDER: Final = Path(__file__).parent / "console"
# Nothing from elsewhere, no code or style in the page itself, and no frame around it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # is asked for by its ETag
}


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def console_routes() -> list[Route | Mount]:
    """Returns the routes. Addresses in the files are relative, so that a proxy may put the server under any path."""

    def to_console(_: Request) -> Response:
        return RedirectResponse("console/")

    return [Route("/", to_console), Mount("/console", app=_Files(directory=FOLDER, html=True))]

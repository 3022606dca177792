"""The routes, and their description as OpenAPI. Each answers from the last observation and waits for no server. And the
console: static files that read the routes under /v1 from the browser, and need no other server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cdc import __version__
from cdc.config.http_settings import Role
from cdc.model.errors import WatershedError
from watershed.http.access import caller_of
from watershed.http.answers import Failure, failed, json_answer
from watershed.http.dead_letters import DeadLetterReader, DeadLetters
from watershed.http.metrics import CONTENT_TYPE, metrics_text
from watershed.http.operations import ACTIONS, OperationAnswer, OperationRequest
from watershed.http.waits import TIMEOUT_S, TIMEOUT_S_MAX, NotShownError, Question, Waits
from watershed.status.model import Node, Part, Problem, SinkStatus, Status, TableStatus, ViewStatus
from watershed.status.trend import Recent


class Health(Node):
    """The process answers."""

    is_alive: bool


class Readiness(Node):
    """The readiness of this process, and the reasons if it is not ready."""

    is_ready: bool
    reasons: tuple[Problem, ...]


class Tables(Node):
    tables: tuple[TableStatus, ...]


class Sinks(Node):
    sinks: tuple[SinkStatus, ...]


class Views(Node):
    views: tuple[ViewStatus, ...]


class User(Node):
    """Whose token the request carries. A server without users has one without a name, who reads."""

    name: str
    role: Role


class Shown(Node):
    """Every sink shows all transactions that committed up to the LSN."""

    is_shown: Literal[True] = True
    lsn: str
    sinks: tuple[str, ...]


class NotShown(Failure):
    """The timeout is over. The same question with this epoch continues the wait."""

    epoch: int | None


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
) -> Starlette:
    """Makes the application. `status` and `recent` are called for each request. `parts`: have the other routes."""

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
        return Response(metrics_text(now, is_ready=is_ready), media_type=CONTENT_TYPE)

    def openapi(_: Request) -> Response:
        return JSONResponse(description())

    # Plain functions run in threads of the server's, so that no request waits for another.
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/v1/user", user),
            Route("/v1/status", whole),
            Route("/v1/tables", tables),
            Route("/v1/wait", wait),
            Route("/v1/sinks", sinks),
            Route("/v1/sinks/{name}", sink),
            *_view_routes(status),
            Route("/v1/history", history),
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


# ---- OpenAPI

_MODELS: Final = (
    *(Health, Readiness, User, Status, Tables, Sinks, SinkStatus, Views, ViewStatus, Recent, DeadLetters, Failure),
    *(Shown, NotShown),
    *(OperationRequest, OperationAnswer),
)
_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_UP_TO: Final = "Answer when the store shows all transactions that committed up to this LSN."
_OF_A_WAIT: Final = (
    ("table", "Of a wait, repeatable: only this table, as schema.table.", "string"),
    ("accept_rejected", "Of a wait, true: answer although rows are missing that were rejected.", "string"),
    ("timeout", f"Seconds to wait, {TIMEOUT_S:g} by default, {TIMEOUT_S_MAX:g} at most.", "number"),
    ("timeline", "The LSN's timeline. It must be that of the source.", "integer"),
    ("system_identifier", "That of the LSN's server. It must be that of the source.", "string"),
    ("epoch", "Of an answer 504 to the same question, which this one continues.", "integer"),
)
# Path → its parameters: name, description, type.
_PARAMETERS: Final = {
    "/v1/wait": (
        ("lsn", _UP_TO, "string"),
        ("sink", "Repeatable; by default every sink that has published a position.", "string"),
        *_OF_A_WAIT,
    ),
    **dict.fromkeys(("/v1/sinks", "/v1/sinks/{name}"), (("wait_for", _UP_TO, "string"), *_OF_A_WAIT)),
}
_WAIT_ANSWERS: Final[Mapping[int, type[BaseModel]]] = {
    **dict.fromkeys((400, 404, 409, 429, 502, 503), Failure),
    504: NotShown,
}
# Path → its description, its answers.
_PATHS: Final[Mapping[str, tuple[str, Mapping[int, type[BaseModel]]]]] = {
    "/healthz": ("Whether the process is alive.", {200: Health}),
    "/readyz": ("Whether the process does its work; if not, why.", {200: Readiness, 503: Readiness}),
    "/v1/user": ("The user of the token, and its role.", {200: User}),
    "/v1/status": ("The whole status: source, slot, capture, tables, sinks, views, problems.", {200: Status}),
    "/v1/tables": ("Each configured table.", {200: Tables}),
    "/v1/wait": ("Waits until stores show an LSN.", {200: Shown, **_WAIT_ANSWERS}),
    "/v1/sinks": ("Each sink that has published a position.", {200: Sinks, **_WAIT_ANSWERS}),
    "/v1/sinks/{name}": ("One sink.", {200: SinkStatus, **_WAIT_ANSWERS}),
    "/v1/views": ("Each configured view.", {200: Views}),
    "/v1/views/{name}": ("One view.", {200: ViewStatus, 404: Failure}),
    "/v1/history": ("Samples and problems of the last half hour, at most since the process started.", {200: Recent}),
    "/v1/dead-letters": ("Rows that stores rejected: the last ones of each sink.", {200: DeadLetters, 503: Failure}),
}


def description() -> dict[str, Any]:
    """Returns the OpenAPI document."""
    _, schemas = models_json_schema(
        [(model, "serialization") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {path: {"get": _operation(path, *documented)} for path, documented in _PATHS.items()}
    paths |= {path: {"post": _operator(summary)} for path, (_, summary) in ACTIONS.items()}
    text = {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    paths["/metrics"] = {"get": {"summary": "Metrics.", "responses": {"200": text}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Watershed", "version": __version__, "description": "Health, status, metrics, operations."},
        "paths": paths,
        # A server without users asks for none.
        "security": [{"token": []}, {}],
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token of http.users."}},
        },
    }


def _operator(summary: str) -> dict[str, Any]:
    def content(model: type[BaseModel]) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}

    failures = {code: {"description": "Why not.", **content(Failure)} for code in ("400", "403", "409", "503", "504")}
    done = {"description": "Capture has accepted it.", **content(OperationAnswer)}
    return {
        "summary": summary,
        "description": "Needs a user with role operate.",
        "security": [{"token": []}],
        "requestBody": content(OperationRequest),
        "responses": {"200": done, **failures},
    }


def _operation(path: str, summary: str, answers: Mapping[int, type[BaseModel]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(code): {
                "description": (model.__doc__ or summary).splitlines()[0],
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}},
            }
            for code, model in answers.items()
        },
    }
    queries = [
        {"name": name, "in": "query", "required": name == "lsn", "description": text, "schema": {"type": kind}}
        for name, text, kind in _PARAMETERS.get(path, ())
    ]
    parameters = [*([_NAME] if "{name}" in path else []), *queries]
    return found | ({"parameters": parameters} if parameters else {})


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

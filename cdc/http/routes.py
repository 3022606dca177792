"""The routes, and their description as OpenAPI. Each answers from the last observation and waits for no server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cdc import __version__
from cdc.http.metrics import CONTENT_TYPE, metrics_text
from cdc.status.model import Part, Problem, SinkStatus, Status, TableStatus


class Health(BaseModel):
    """The process answers."""

    model_config = ConfigDict(frozen=True)
    is_alive: bool


class Readiness(BaseModel):
    """Whether this process does its work, and what keeps it from that."""

    model_config = ConfigDict(frozen=True)
    is_ready: bool
    reasons: tuple[Problem, ...]


class Tables(BaseModel):
    model_config = ConfigDict(frozen=True)
    tables: tuple[TableStatus, ...]


class Sinks(BaseModel):
    model_config = ConfigDict(frozen=True)
    sinks: tuple[SinkStatus, ...]


class Failure(BaseModel):
    model_config = ConfigDict(frozen=True)
    error: str
    next: str


@dataclass(frozen=True, slots=True)
class Scope:
    """The parts of the pipeline that a process answers for."""

    parts: frozenset[Part]
    sinks: frozenset[str] | None = None  # None: all


CAPTURE: Final = Scope(frozenset({"source", "brokers", "capture", "table"}))


def sinks_scope(names: frozenset[str]) -> Scope:
    """Of a process that runs these sinks."""
    return Scope(frozenset({"brokers", "sink"}), names)


def application(status: Callable[[], Status], scope: Scope) -> Starlette:
    """`status` is called for each request."""

    def healthz(_: Request) -> Response:
        return _json(Health(is_alive=True))

    def readyz(_: Request) -> Response:
        reasons = status().errors(scope.parts, scope.sinks)
        return _json(Readiness(is_ready=not reasons, reasons=reasons), 503 if reasons else 200)

    def whole(_: Request) -> Response:
        return _json(status())

    def tables(_: Request) -> Response:
        return _json(Tables(tables=status().tables))

    def sinks(_: Request) -> Response:
        return _json(Sinks(sinks=status().sinks))

    def sink(request: Request) -> Response:
        name, found = request.path_params["name"], status().sinks
        for one in found:
            if one.sink == name:
                return _json(one)
        known = ", ".join(one.sink for one in found) or "none"
        return _json(Failure(error=f"no sink {name!r} has published a position", next=f"there are: {known}"), 404)

    def metrics(_: Request) -> Response:
        now = status()
        is_ready = not now.errors(scope.parts, scope.sinks)
        return Response(metrics_text(now, is_ready=is_ready), media_type=CONTENT_TYPE)

    def openapi(_: Request) -> Response:
        return JSONResponse(description())

    # Plain functions run in threads of the server's, so that no request waits for another.
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/v1/status", whole),
            Route("/v1/tables", tables),
            Route("/v1/sinks", sinks),
            Route("/v1/sinks/{name}", sink),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
        ],
        exception_handlers={HTTPException: _refused},
    )


def _json(model: BaseModel, code: int = 200) -> Response:
    return Response(model.model_dump_json(), code, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(Failure(error=error.detail, next="GET /openapi.json has all routes"), error.status_code)


# ---- OpenAPI

_MODELS: Final = (Health, Readiness, Status, Tables, Sinks, SinkStatus, Failure)
_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
# Path → what it says, its answers.
_PATHS: Final[Mapping[str, tuple[str, Mapping[int, type[BaseModel]]]]] = {
    "/healthz": ("Whether the process is alive.", {200: Health}),
    "/readyz": ("Whether the process does its work; if not, why.", {200: Readiness, 503: Readiness}),
    "/v1/status": ("Everything: source, slot, capture, tables, sinks, problems.", {200: Status}),
    "/v1/tables": ("Each configured table.", {200: Tables}),
    "/v1/sinks": ("Each sink that has published a position.", {200: Sinks}),
    "/v1/sinks/{name}": ("One sink.", {200: SinkStatus, 404: Failure}),
}


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    _, schemas = models_json_schema(
        [(model, "serialization") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {path: {"get": _operation(path, *said)} for path, said in _PATHS.items()}
    text = {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    paths["/metrics"] = {"get": {"summary": "Metrics.", "responses": {"200": text}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Watershed", "version": __version__, "description": "Read-only: health, status, metrics."},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
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
    return found | ({"parameters": [_NAME]} if "{name}" in path else {})

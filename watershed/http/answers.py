"""Answers in JSON. A failure says what has failed and the next step."""

import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdc.model.errors import ConnectionLost, GapError, NotInTimeError, UnreachableError, WatershedError
from watershed.client.applied import WaitError
from watershed.status.model import Node


class Failure(Node):
    error: str
    next: str


class BusyError(UnreachableError):
    """Too many requests are waiting. This one has not begun."""


COUNT_CHARS_MAX: Final = 9
SHOWN_CHARS_MAX: Final = 40
# A conflict can't be resolved by waiting. The first that fits counts.
_CODES: Final[Mapping[type[WatershedError], int]] = {
    BusyError: 429,
    WaitError: 404,
    GapError: 409,
    UnreachableError: 503,
    ConnectionLost: 503,
    NotInTimeError: 503,
}


class NotKept:
    """Has browsers and proxies keep no answer that does not say otherwise, and guess no other type of one: answers have
    values of rows. ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        await self._app(scope, receive, with_headers)


def json_answer(model: BaseModel, code: int = 200) -> Response:
    return Response(model.model_dump_json(), code, media_type="application/json")


def values(found: Mapping[str, Any]) -> Response:
    """Returns an answer with the values of rows. What JSON does not have, such as NaN, is its text."""
    try:
        return JSONResponse(found)
    except ValueError:
        return JSONResponse(_finite(found))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def failure(code: int, error: str, hint: str) -> Response:
    return json_answer(Failure(error=error, next=hint), code)


def failed(error: WatershedError, otherwise: int = 502) -> Response:
    """Returns the answer to a request that ended with this error."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), otherwise)
    return failure(code, error.message, error.hint)


def result_of(answer: Response) -> str:
    """Returns code and body, for the records of operations."""
    return f"{answer.status_code}: {bytes(answer.body).decode()}"


def count_of(request: Request, name: str, default: int, least: int, most: int) -> int | Response:
    """Returns the number of the query's parameter, or the refusal of what is none."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= COUNT_CHARS_MAX and least <= int(text) <= most):
        what = f"{name}={text[:SHOWN_CHARS_MAX]!r} is no number from {least} to {most}"
        return failure(400, what, f"leave {name} out, or correct it")
    return int(text)

"""What an operator does over HTTP: each operation checks who asks and for what, and is recorded before it begins
(audit.py). Where a command sends a signal or a request, the operation does so by the same function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cdc.model.errors import (
    ConfigError,
    ConnectionLost,
    NotInTimeError,
    UnreachableError,
    WatershedError,
)
from cdc.model.events import TableId
from watershed.http.access import Caller, caller_of
from watershed.http.answers import BusyError, failure, result_of
from watershed.http.audit import Audit, AuditError
from watershed.http.bounded_work import BoundedWork
from watershed.status.model import Node

log = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024
AT_ONCE: Final = 2
WAITING_MAX: Final = 10  # requests
OPERATION_S_MAX: Final = 180.0  # above the time in which capture answers
TABLES_MAX: Final = 1_000
_LATE: Final = "it may take effect later: look at the status before you ask again"
_EXAMPLE: Final = 'send JSON such as {"tables": ["public.orders"]}'


class Wanted(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    def refusal(self) -> str:
        """Returns why this can't be asked for; "" if it can."""
        return ""


class WantedTables(Wanted):
    """The tables that an operation is for."""

    tables: tuple[str, ...] = Field(default=(), max_length=TABLES_MAX)  # schema.table

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(TableId.parse(name)) for name in dict.fromkeys(tables))


class OperationAnswer(Node):
    """What was done, and for which tables."""

    answer: str
    tables: tuple[str, ...] = ()


class Started(Node):
    """The operation has begun, and goes on in this process."""

    id: str


class RefusedOperationError(WatershedError):
    """Whoever does the operation refuses it."""


W = TypeVar("W", bound=Wanted)


@dataclass(frozen=True, slots=True)
class Operation(Generic[W]):
    """One operation."""

    path: str
    action: str
    summary: str
    wanted: type[W]
    # Called in a thread with the caller, the request, and the parameters in the path. Raises WatershedError.
    do: Callable[[Caller, W, Mapping[str, str]], Node]
    answer: type[Node] = OperationAnswer
    code: int = 200


@dataclass(slots=True)
class Operations:
    """The operations of a server, a few at a time."""

    operations: Sequence[Operation[Any]]
    audit: Audit
    _work: BoundedWork = field(
        default_factory=lambda: BoundedWork("the operation", AT_ONCE, OPERATION_S_MAX, WAITING_MAX, _LATE)
    )

    def routes(self) -> Sequence[Route]:
        return [Route(one.path, self._route(one), methods=["POST"]) for one in self.operations]

    def _route(self, operation: Operation[Any]) -> Callable[[Request], object]:
        async def operate(request: Request) -> Response:
            if caller_of(request).role != "operate":  # CheckedAccess has refused it already
                return failure(403, "this needs a user with role operate", "configure http.users")
            try:
                wanted = await _wanted(request, operation.wanted)
            except ClientDisconnect:
                wanted = failure(400, "the client left before the end of its request", _EXAMPLE)
            if isinstance(wanted, Response):
                await self.audit.refused(request, operation.action, result_of(wanted))
                return wanted
            return await self._recorded(operation, request, wanted)

        return operate

    async def _recorded(self, operation: Operation[Any], request: Request, wanted: Wanted) -> Response:
        arguments = {**request.path_params, **wanted.model_dump(mode="json", exclude_defaults=True)}
        try:
            entry = await self.audit.begin(request, operation.action, arguments)
        except AuditError as error:
            return failure(503, error.message, error.hint)
        log.info(
            "an operation was requested over HTTP", action=operation.action, user=entry[1].who, arguments=arguments
        )
        try:
            answer = await self._done(operation, caller_of(request), wanted, request.path_params)
        except Exception as error:
            await self.audit.end(entry, f"500: {error}")
            raise
        result = result_of(answer)
        log.info("an operation was answered", action=operation.action, user=entry[1].who, result=result)
        await self.audit.end(entry, result)
        return answer

    async def _done(
        self, operation: Operation[Any], caller: Caller, wanted: Wanted, place: Mapping[str, str]
    ) -> Response:
        try:
            made = await self._work.run(partial(operation.do, caller, wanted, place))
        except BusyError as error:
            return failure(429, error.message, error.hint)
        except (UnreachableError, ConnectionLost) as error:
            return failure(503, error.message, error.hint)
        except NotInTimeError as error:  # a signal waits for capture
            return failure(504, error.message, error.hint)
        except ConfigError as error:
            return failure(404, error.message, error.hint)
        except WatershedError as error:
            return failure(409, error.message, error.hint)
        return JSONResponse(made.model_dump(mode="json"), operation.code)


async def _wanted(request: Request, model: type[Wanted]) -> Wanted | Response:
    body = await _body(request)
    if body is None:
        return failure(413, f"the body has more than {BODY_BYTES_MAX} bytes", "name fewer tables or keys")
    try:
        wanted = model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        return failure(400, f"{where}: {first['msg']}", _EXAMPLE)
    if _has_null(wanted.model_dump()):
        return failure(400, "the body has a character NUL, which PostgreSQL's texts can't have", _EXAMPLE)
    reason = wanted.refusal()
    return failure(400, reason, "/openapi.json has what each operation takes") if reason else wanted


def _has_null(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list | tuple) else isinstance(value, str) and "\0" in value


async def _body(request: Request) -> bytes | None:
    """Returns the body; None if it is longer than any request's."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    return body

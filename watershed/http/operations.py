"""What an operator does over HTTP: the same signals as the commands `cdc snapshot` and `cdc table` send. The signal
names the user, and its topic keeps it, so topic `<prefix>.signals` says who asked for what; the log says it, too.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

import anyio
import structlog
from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.config_file import Config
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import ConnectionLost, UnreachableError, WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from watershed.client.signal_sender import await_answer, send_signal
from watershed.http.access import caller_of
from watershed.http.answers import failure, json_answer
from watershed.status.model import Node

log = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024
ANSWER_S_MAX: Final = 20.0
WAITING_MAX: Final = 10  # requests, each for capture's answer
Action = Literal["snapshot", "pause", "resume", "cancel", "stop_table", "start_table", "reload"]
# Path → the signal's action, its description.
ACTIONS: Final[Mapping[str, tuple[Action, str]]] = {
    "/v1/snapshots/start": ("snapshot", "Publish the rows of these tables again, or those that fulfil `where`."),
    "/v1/snapshots/pause": ("pause", "Pause snapshots; without tables all that run."),
    "/v1/snapshots/resume": ("resume", "Continue paused snapshots; without tables all of them."),
    "/v1/snapshots/cancel": ("cancel", "Cancel snapshots; without tables all of them."),
    "/v1/tables/stop": ("stop_table", "Stop publishing changes of these tables."),
    "/v1/tables/start": ("start_table", "Capture stopped tables again; all their rows are read."),
    "/v1/reload": ("reload", "Let capture and sinks read their configuration files again."),
}
_NEED_TABLES: Final = frozenset({"stop_table", "start_table", "snapshot"})


class OperationRequest(BaseModel):
    """The tables that an operation is for."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    tables: tuple[str, ...] = Field(default=(), max_length=1_000)  # schema.table
    where: str | None = Field(default=None, max_length=10_000)  # of start: a condition, as in `cdc snapshot start`

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(TableId.parse(name)) for name in dict.fromkeys(tables))


class OperationAnswer(Node):
    """What capture answered, and for which tables."""

    answer: str
    tables: tuple[str, ...]


class Operations:
    """Sends signals and waits for their answers, a few at a time."""

    def __init__(self, send: Callable[[SignalRecord], SignalAnswer]) -> None:
        self._send = send
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is made in the server's event loop

    @classmethod
    def of(cls, config: Config) -> "Operations":
        topics = Topics(config.topics.prefix)

        def send(record: SignalRecord) -> SignalAnswer:
            return await_answer(config.kafka, topics, send_signal(config.kafka, topics, record), ANSWER_S_MAX)

        return cls(send)

    def routes(self) -> list[Route]:
        return [Route(path, self._operation(action), methods=["POST"]) for path, (action, _) in ACTIONS.items()]

    def _operation(self, action: Action) -> Callable[[Request], object]:
        async def operate(request: Request) -> Response:
            caller = caller_of(request)
            if caller.role != "operate":  # CheckedAccess has refused it already
                return failure(403, "this needs a user with role operate", "configure http.users")
            try:
                wanted = OperationRequest.model_validate_json(await _body(request) or b"{}")
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"])) or "the body"
                return failure(400, f"{where}: {first['msg']}", 'send JSON such as {"tables": ["public.orders"]}')
            if wanted.where is not None and action != "snapshot":
                return failure(400, "where is for /v1/snapshots/start", "leave it out")
            if action == "reload" and wanted.tables:
                return failure(400, "the file is read as a whole, not for some tables", "leave tables out")
            if action in _NEED_TABLES and not wanted.tables:
                return failure(400, "no tables are named", 'send JSON such as {"tables": ["public.orders"]}')
            if self._waiting >= WAITING_MAX:
                return failure(503, f"{WAITING_MAX} requests are waiting already", "try again in a moment")
            record = SignalRecord(
                action=action,
                tables=wanted.tables,
                where=wanted.where,
                requested_us=time.time_ns() // 1000,
                requested_by=caller.name,
            )
            return await self._answered(record)

        return operate

    async def _answered(self, record: SignalRecord) -> Response:
        self._limiter = self._limiter or anyio.CapacityLimiter(2)
        asked = {"action": record.action, "tables": ", ".join(record.tables), "user": record.requested_by}
        log.info("an operation was requested over HTTP", **asked)
        self._waiting += 1
        try:
            answer = await run_sync(self._send, record, limiter=self._limiter)
        except (UnreachableError, ConnectionLost) as error:
            return failure(503, error.message, error.hint)
        except WatershedError as error:  # capture has not answered; the signal waits for it
            return failure(504, error.message, error.hint)
        finally:
            self._waiting -= 1
        log.info("an operation was answered", accepted=answer.is_accepted, message=answer.message, **asked)
        if not answer.is_accepted:
            return failure(409, f"refused: {answer.message}", answer.next or "GET /v1/tables shows the tables")
        made = OperationAnswer(answer=answer.message, tables=answer.tables)
        return json_answer(made)


async def _body(request: Request) -> bytes:
    """Returns the body; of a longer one than any request has, a part that is no JSON."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return body[:BODY_BYTES_MAX] + b"\0"
    return body

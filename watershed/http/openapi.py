"""The description of all routes, as OpenAPI."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from cdc import __version__
from watershed.http.answers import Failure
from watershed.http.comparisons import Run
from watershed.http.dead_letters import DeadLetters
from watershed.http.long_history import HOURS, HOURS_MAX, LongHistory
from watershed.http.models import Health, NotShown, Offered, Readiness, Shown, Sinks, Tables, User, Views
from watershed.http.operations import Operation
from watershed.http.pipelines import Pipelines
from watershed.http.waits import TIMEOUT_S, TIMEOUT_S_MAX
from watershed.status.model import Node, SinkStatus, Status, ViewStatus
from watershed.status.position import PositionOfStores
from watershed.status.trend import Recent

# ---- answers that commands print, too, and that have no model there


class ColumnOfTable(Node):
    name: str
    type: str
    nullable: bool
    mask: str | None  # the action, and of some its length: asterisks(5)


class SchemaOfTable(Node):
    """The columns of one version of a table's schema."""

    version: int
    columns: tuple[str, ...]


class StoreOfTable(Node):
    """A sink, and under which names its store has the table."""

    sink: str
    type: str
    is_held: bool
    generation: int | None
    building: tuple[int, ...]
    names: dict[str, str]
    columns: tuple[str, ...]
    where: str | None


class TableDescription(Node):
    """A table: its state, topic, key and columns, and its names in each store."""

    table: str
    status: str
    message: str
    next: str
    topic: str
    partitions: int
    key: tuple[str, ...]
    schema_version: int
    columns: tuple[ColumnOfTable, ...]
    stores: tuple[StoreOfTable, ...]
    schema_versions: tuple[SchemaOfTable, ...]  # the oldest first


class Change(Node):
    """A record of a table's topic."""

    partition: int
    offset: int
    key: Any
    op: str
    version: int | None
    epoch: int | None
    seq: int | None
    commit_lsn: str | None
    commit_us: int | None
    row: dict[str, Any] | None
    before: dict[str, Any] | None


class RecordOfKey(Change):
    is_swept: bool


class RecordsOfKey(Node):
    name: str
    records: tuple[RecordOfKey, ...]


class DifferenceOfColumn(Node):
    """A column of a store that differs, by the store's name."""

    column: str
    expected: str
    stored: str


class StoredRow(Node):
    """The row in one store, and whether it is what it should be."""

    sink: str
    verdict: str
    why: str
    next: str
    generation: int | None
    version: int | None
    applied_lsn: str | None
    row: dict[str, Any] | None
    names: dict[str, str]  # the source's name of a column → the store's
    differences: tuple[DifferenceOfColumn, ...]


class Row(Node):
    """One row in the source, in its topic and in every store."""

    table: str
    key: Any
    source: dict[str, Any] | None
    topic: RecordsOfKey
    stores: tuple[StoredRow, ...]
    not_held: tuple[str, ...]  # sinks whose options leave the whole table out


class Option(Node):
    value: Any
    origin: str = Field(alias="from")


class Options(Node):
    """The configuration, with secrets hidden, and where each value is from."""

    file: str
    options: dict[str, Option]


class LogLines(Node):
    """The last lines that this process logged, the newest last."""

    lines: tuple[str, ...]


class AuditedOperation(Node):
    at: str
    who: str
    role: str
    address: str
    action: str
    path: str
    arguments: dict[str, Any]
    result: str


class AuditedOperations(Node):
    """Operations over HTTP, the newest first."""

    operations: tuple[AuditedOperation, ...]


_UP_TO: Final = "Answer when the store shows all transactions that committed up to this LSN."
_OF_A_WAIT: Final = (
    ("table", "Of a wait, repeatable: only this table, as schema.table.", "string"),
    ("accept_rejected", "Of a wait, true: answer although rows are missing that were rejected.", "string"),
    ("timeout", f"Seconds to wait, {TIMEOUT_S:g} by default, {TIMEOUT_S_MAX:g} at most.", "number"),
    ("timeline", "The LSN's timeline. It must be that of the source.", "integer"),
    ("system_identifier", "That of the LSN's server. It must be that of the source.", "string"),
    ("epoch", "Of an answer 504 to the same question, which this one continues.", "integer"),
)
_KEY: Final = "The key: a value, or a JSON list of several columns' values."
_TABLE: Final = "/v1/tables/{table}"
_IN_PATHS: Final = {
    "table": "schema.table; what a path can't have is percent-encoded.",
    "name": "As in the configuration.",
    "id": "As the answer 202 has it.",
}
# Path → the parameters of its query: name, description, type.
_PARAMETERS: Final = {
    "/v1/wait": (
        ("lsn", _UP_TO, "string"),
        ("sink", "Repeatable; by default every sink that has published a position.", "string"),
        *_OF_A_WAIT,
    ),
    **dict.fromkeys(("/v1/sinks", "/v1/sinks/{name}"), (("wait_for", _UP_TO, "string"), *_OF_A_WAIT)),
    f"{_TABLE}/row": (
        ("key", _KEY, "string"),
        ("records", "The key's last records of the topic, which is then read from its beginning; 0 by default.",
         "integer"),
        ("wait", "false: don't wait for changes under way. A store that differs is then pending.", "string"),
    ),
    f"{_TABLE}/changes": (
        ("key", f"Only changes of this key. {_KEY}", "string"),
        ("last", "First so many of the last changes: 20 by default, 200 at most.", "integer"),
    ),
    "/v1/history/hours": (("hours", f"{HOURS} by default, {HOURS_MAX} at most.", "integer"),),
    "/v1/log": (("lines", "200 by default, 1000 at most.", "integer"),),
    "/v1/audit": (("last", "Operations: 100 by default, 1000 at most.", "integer"),),
}  # fmt: skip
_REQUIRED: Final = {("/v1/wait", "lsn"), (f"{_TABLE}/row", "key")}
Answers = Mapping[int, type[BaseModel]]
_WAIT_ANSWERS: Final[Answers] = {
    **dict.fromkeys((400, 404, 409, 429, 502, 503), Failure),
    504: NotShown,
}
_FAILURES: Final[Answers] = dict.fromkeys((400, 403, 404, 429, 502, 503), Failure)
# Path → its description, its answers.
_PATHS: Final[Mapping[str, tuple[str, Answers]]] = {
    "/healthz": ("Whether the process is alive.", {200: Health}),
    "/readyz": ("Whether the process does its work; if not, why.", {200: Readiness, 503: Readiness}),
    "/v1/user": ("The user of the token, and its role.", {200: User}),
    "/v1/status": ("The whole status: source, slot, capture, tables, sinks, views, problems.", {200: Status}),
    "/v1/tables": ("Each configured table.", {200: Tables}),
    _TABLE: ("One table, with its names in each store.", {200: TableDescription, **_FAILURES}),
    f"{_TABLE}/row": ("One row in the source, in its topic and in every store.", {200: Row, **_FAILURES}),
    f"{_TABLE}/changes": ("The table's changes as they arrive: each event has one as its data.", _FAILURES),
    "/v1/position": (
        "The LSN that every store has applied, and that of each store.",
        {200: PositionOfStores, 503: Failure},
    ),
    "/v1/wait": ("Waits until stores show an LSN.", {200: Shown, **_WAIT_ANSWERS}),
    "/v1/sinks": ("Each sink that has published a position.", {200: Sinks, **_WAIT_ANSWERS}),
    "/v1/sinks/{name}": ("One sink.", {200: SinkStatus, **_WAIT_ANSWERS}),
    "/v1/views": ("Each configured view.", {200: Views}),
    "/v1/views/{name}": ("One view.", {200: ViewStatus, 404: Failure}),
    "/v1/history": ("Samples and problems of the last half hour, at most since the process started.", {200: Recent}),
    "/v1/history/hours": ("Hours of history, from Prometheus.",
                          {200: LongHistory, **dict.fromkeys((400, 404, 429, 503), Failure)}),
    "/v1/pipelines": ("This pipeline and the others of http.pipelines, in numbers.", {200: Pipelines, 403: Failure}),
    "/v1/console": ("What the console can show, by the configuration.", {200: Offered}),
    "/v1/dead-letters": ("Rows that stores rejected: the last ones of each sink.", {200: DeadLetters, 503: Failure}),
    "/v1/config": ("The configuration in the file, with secrets hidden.",
                   {200: Options, **dict.fromkeys((403, 409, 429, 503), Failure)}),
    "/v1/log": ("The last log lines of this process.", {200: LogLines, **dict.fromkeys((400, 403), Failure)}),
    "/v1/audit": ("Operations over HTTP.", {200: AuditedOperations, **_FAILURES}),
    "/v1/operations/{id}": ("A comparison or a repair.", {200: Run, **dict.fromkeys((403, 404), Failure)}),
}  # fmt: skip


def description(operations: Sequence[Operation[Any]] = ()) -> dict[str, Any]:
    """Returns the OpenAPI document of a server with these operations."""
    models = {model for _, answers in _PATHS.values() for model in answers.values()}
    models |= {Change, Failure, *(one.answer for one in operations), *(one.wanted for one in operations)}
    _, schemas = models_json_schema(
        [(model, "serialization") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {path: {"get": _read(path, *documented)} for path, documented in _PATHS.items()}
    for one in operations:
        paths.setdefault(one.path, {})["post"] = _operation(one)
    events = {"description": "Events, and comments as heartbeats.", "content": {"text/event-stream": _schema(Change)}}
    paths[f"{_TABLE}/changes"]["get"]["responses"]["200"] = events
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
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of http.users, or of the issuer of http.oidc.",
                }
            },
        },
    }


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"content": {"application/json": _schema(model)}}


def _operation(one: Operation[Any]) -> dict[str, Any]:
    codes = ("400", "401", "403", "404", "409", "413", "429", "503", "504")
    failures = {code: {"description": "Why not.", **_json_of(Failure)} for code in codes}
    done = {"description": (one.answer.__doc__ or "").splitlines()[0], **_json_of(one.answer)}
    found = {
        "summary": one.summary,
        "description": "Needs a user with role operate, and is recorded (GET /v1/audit).",
        "security": [{"token": []}],
        "requestBody": _json_of(one.wanted),
        "responses": {str(one.code): done, **failures},
    }
    return found | _parameters(one.path)


def _read(path: str, summary: str, answers: Answers) -> dict[str, Any]:
    responses = {
        str(code): {"description": (model.__doc__ or summary).splitlines()[0], **_json_of(model)}
        for code, model in answers.items()
    }
    return {"summary": summary, "responses": responses, **_parameters(path)}


def _parameters(path: str) -> dict[str, Any]:
    places = [
        {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in _IN_PATHS.items()
        if f"{{{name}}}" in path
    ]
    queries = [
        {
            "name": name,
            "in": "query",
            "required": (path, name) in _REQUIRED,
            "description": text,
            "schema": {"type": kind},
        }
        for name, text, kind in _PARAMETERS.get(path, ())
    ]
    return {"parameters": [*places, *queries]} if places or queries else {}

"""What a page about one table shows: its description, one row in the source, the topic and every store, and its changes
as they arrive. Masked columns are masked, and columns that are left out do not appear, as in the topic and the stores.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.config_file import Config
from cdc.config.http_settings import HttpConfig
from cdc.kafka.state_reader import read_in_force
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from watershed.http.access import refused_values
from watershed.http.answers import count_of, failed, failure, values
from watershed.http.bounded_work import BoundedWork
from watershed.http.change_streams import ChangeStreams
from watershed.status.table_records import record_key
from watershed.verify.one_key import read_row
from watershed.verify.one_table import UnknownTableError, published_table, read_description

ROWS_AT_ONCE: Final = 2  # each has connections to the source and to every store
ROW_S_MAX: Final = 60.0
RECORDS_MAX: Final = 100
DESCRIPTIONS_AT_ONCE: Final = 4
DESCRIPTION_S_MAX: Final = 30.0
LAST: Final = 20
LAST_MAX: Final = 200
_EXAMPLE: Final = "GET /v1/tables lists the tables"


class TableSource(Protocol):
    """Where the reads are from. Methods are called in threads, and raise WatershedError."""

    def schema(self, table: TableId) -> TableSchema: ...
    def description(self, table: TableId) -> Mapping[str, Any]: ...
    def row(self, schema: TableSchema, key: bytes, records: int, *, is_settled: bool) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class PipelineTables:
    """Reads from the brokers, the source and the stores."""

    config: Callable[[], Config]  # as it is now

    def schema(self, table: TableId) -> TableSchema:
        return published_table(self.config(), table)

    def description(self, table: TableId) -> Mapping[str, Any]:
        return read_description(self.config(), table)

    def row(self, schema: TableSchema, key: bytes, records: int, *, is_settled: bool) -> Mapping[str, Any]:
        deadline, config = time.monotonic() + ROW_S_MAX, read_in_force(self.config())
        return read_row(config, schema, key, records, deadline=deadline, is_settled=is_settled).as_json()


class TableReads:
    """Routes for one table. Of a name with slashes or blanks these are percent-encoded."""

    def __init__(self, http: HttpConfig, source: TableSource, streams: ChangeStreams) -> None:
        self._http = http
        self._source = source
        self._streams = streams
        self._descriptions = BoundedWork("reading a table's description", DESCRIPTIONS_AT_ONCE, DESCRIPTION_S_MAX)
        self._rows = BoundedWork("reading a row", ROWS_AT_ONCE, ROW_S_MAX)

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/tables/{rest:path}", self._table)]

    async def _table(self, request: Request) -> Response:
        # The path itself: in the decoded one a table's slash would be one between segments.
        raw: bytes = request.scope["raw_path"]
        name, *rest = map(unquote, raw.decode("ascii", "replace").partition("/v1/tables/")[2].split("/"))
        answers: Mapping[tuple[str, ...], Callable[[Request, TableId], Any]] = {
            (): self._described,
            ("row",): self._row,
            ("changes",): self._changes,
        }
        found = answers.get(tuple(rest))
        if found is None:
            return failure(404, f"a table has no {'/'.join(rest)!r}", "ask for row or changes; /openapi.json has all")
        try:
            table = TableId.parse(name)
        except ValueError as error:
            return failure(400, str(error), f"write schema.table, with slashes as %2F; {_EXAMPLE}")
        if rest and (refusal := refused_values(self._http, request)) is not None:
            return refusal
        try:
            answer: Response = await found(request, table)
        except UnknownTableError as error:
            return failure(404, error.message, error.hint)
        except WatershedError as error:
            return failed(error)
        return answer

    async def _described(self, _: Request, table: TableId) -> Response:
        return values(await self._descriptions.run(partial(self._source.description, table)))

    async def _row(self, request: Request, table: TableId) -> Response:
        text = request.query_params.get("key")
        if text is None:
            return failure(400, "key is missing", "add ?key=VALUE; a key of several columns is a JSON list")
        records = count_of(request, "records", 0, 0, RECORDS_MAX)
        if isinstance(records, Response):
            return records
        wait = request.query_params.get("wait", "true")
        if wait not in ("true", "false"):
            return failure(400, f"wait={wait[:40]!r} is neither true nor false", "leave wait out, or correct it")
        schema = await self._rows.run(partial(self._source.schema, table))
        key = _key(schema, text)
        if isinstance(key, Response):
            return key
        return values(await self._rows.run(partial(self._source.row, schema, key, records, is_settled=wait == "true")))

    async def _changes(self, request: Request, table: TableId) -> Response:
        last = count_of(request, "last", LAST, 0, LAST_MAX)
        if isinstance(last, Response):
            return last
        schema = await self._descriptions.run(partial(self._source.schema, table))
        text = request.query_params.get("key")
        key = _key(schema, text) if text else None
        if isinstance(key, Response):
            return key
        return await self._streams.answer(schema, key, last, is_head=request.method == "HEAD")


def _key(schema: TableSchema, text: str) -> bytes | Response:
    try:
        return record_key(schema, text)
    except WatershedError as error:
        return failure(400, error.message, error.hint)

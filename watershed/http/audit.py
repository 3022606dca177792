"""The record of operations: topic `<prefix>.audit`. An operation whose record can't be written is not done."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.config_file import Config
from cdc.config.http_settings import HttpConfig
from cdc.kafka.client import missing_topic
from cdc.kafka.signals import deliver
from cdc.kafka.topic_reader import open_reader
from cdc.model.audit import AuditRecord
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from watershed.http.access import caller_of, refused_values
from watershed.http.answers import count_of, failed, values
from watershed.http.bounded_work import BoundedWork

log = structlog.get_logger(__name__)

LAST: Final = 100
LAST_MAX: Final = 1_000
RECORDS_EACH: Final = 2  # of an operation
WRITE_S_MAX: Final = 25.0  # above that of a single record
READ_S_MAX: Final = 20.0
RESULT_CHARS_MAX: Final = 1_000
PATH_CHARS_MAX: Final = 300
ACTION_CHARS_MAX: Final = 100
WARNING_PAUSE_S: Final = 10.0
UNFINISHED: Final = "not known: it is under way, or the process ended before its end"

Write = Callable[[str, AuditRecord], None]
"""Writes a record under an operation's id, and returns when the brokers have acknowledged it. Raises WatershedError."""

Read = Callable[[int], "Sequence[Entry]"]
"""Returns the last records, with the ids of their operations, the newest last. Raises WatershedError."""


class AuditError(UnreachableError):
    """The operation was not recorded, and so not begun."""


class Audit:
    """The record of operations. Used by the server's event loop."""

    def __init__(self, http: HttpConfig, write: Write, read: Read) -> None:
        self._http = http
        self._write = write
        self._read = read
        self._warned_s = float("-inf")
        self._writes = BoundedWork("writing the audit record", 2, WRITE_S_MAX)
        # Apart: whoever is refused again and again must not keep an operator's record from being written.
        self._refusals = BoundedWork("writing the audit record", 1, WRITE_S_MAX)
        self._reads = BoundedWork("reading the audit records", 1, READ_S_MAX)

    @classmethod
    def of(cls, config: Config) -> "Audit":
        topic = Topics(config.topics.prefix).audit

        def write(identity: str, record: AuditRecord) -> None:
            deliver(config.kafka, TopicRecord(topic, identity.encode(), record.encode()))

        return cls(config.http, write, partial(_last_records, config, topic))

    async def begin(self, request: Request, action: str, arguments: Mapping[str, Any]) -> "Entry":
        """Records that an operation is about to begin. Raises AuditError: then it must not."""
        entry = _entry(request, action, arguments)
        try:
            await self._writes.run(partial(self._write, *entry))
        except WatershedError as error:
            what = f"not done, because its audit record can't be written: {error.message}"
            raise AuditError(what, error.hint) from None
        return entry

    async def end(self, entry: "Entry", result: str) -> None:
        """Records what became of it. What can't be written is in the log."""
        await self._end(entry, result, self._writes)

    async def _end(self, entry: "Entry", result: str, work: BoundedWork) -> None:
        identity, record = entry
        ended = record.model_copy(update={"result": result[:RESULT_CHARS_MAX]})
        try:
            await work.run(partial(self._write, identity, ended))
        except WatershedError as error:
            self._warn(ended, error)

    async def refused(self, request: Request, action: str, result: str) -> None:
        """Records a request that was refused: by its result alone."""
        await self._end(_entry(request, action, {}), result, self._refusals)

    def note(self, record: AuditRecord) -> None:
        """Records what has ended by itself. Called in a thread. What can't be written is in the log."""
        try:
            self._write(uuid.uuid4().hex, record)
        except WatershedError as error:
            self._warn(record, error)

    def _warn(self, record: AuditRecord, error: WatershedError) -> None:
        if time.monotonic() - self._warned_s < WARNING_PAUSE_S:
            return  # whoever is refused again and again does not fill the log
        self._warned_s = time.monotonic()
        asked = record.model_dump(include={"who", "address", "action", "path", "result"})
        log.warning("an audit record can't be written", error=error.message, **asked)

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/audit", self._operations)]

    async def _operations(self, request: Request) -> Response:
        if (refusal := refused_values(self._http, request)) is not None:
            return refusal
        last = count_of(request, "last", LAST, 1, LAST_MAX)
        if isinstance(last, Response):
            return last
        try:
            records = await self._reads.run(partial(self._read, RECORDS_EACH * last))
        except WatershedError as error:
            return failed(error)
        return values({"operations": _shown(records)[:last]})


Entry = tuple[str, AuditRecord]
"""An operation's id and its record."""


def _entry(request: Request, action: str, arguments: Mapping[str, Any]) -> Entry:
    caller = caller_of(request)
    record = AuditRecord(
        at_us=time.time_ns() // 1000,
        who=caller.name,
        role=caller.role,
        address=request.client.host if request.client else "",
        action=action[:ACTION_CHARS_MAX],  # of a refused request this is its path
        path=request.url.path[:PATH_CHARS_MAX],
        arguments=dict(arguments),
    )
    return uuid.uuid4().hex, record


def _shown(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Returns the operations, the newest first. Of one that has ended the last record counts."""
    last = sorted(dict(entries).values(), key=lambda record: -record.at_us)
    return [
        {
            "at": datetime.fromtimestamp(record.at_us / 1e6, UTC).isoformat(timespec="milliseconds"),
            **record.model_dump(mode="json", exclude={"at_us"}),
            "result": record.result or UNFINISHED,
        }
        for record in last
    ]


def _last_records(config: Config, topic: str, count: int) -> list[Entry]:
    found = []
    with open_reader(config.kafka) as reader:
        if topic not in reader.topics():
            raise missing_topic(topic)
        end = reader.end(topic)
        for message in reader.read(topic, 0, max(0, end - count), end):
            where = f"topic {topic}, offset {message.offset()}"
            try:
                found.append(((message.key() or b"").decode(), AuditRecord.decode(message.value() or b"", where)))
            except (WatershedError, UnicodeDecodeError) as error:  # another program's
                log.warning("an audit record can't be read", where=where, error=str(error))
    return found

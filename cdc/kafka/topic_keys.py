"""The keys of a topic whose last record is a row, in pages, to be looked up in the source; and its rows, with which
chunks of the source's rows are compared.

A topic of any size is read once, from its beginning to its end at that time. The keys are kept in a temporary SQLite
database, of which CACHE_KIBIBYTES are in memory and the rest in a file that disappears with the process.
"""

import queue
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import structlog

from cdc.config.settings import KafkaConfig
from cdc.formats.records import EnvelopeContext
from cdc.formats.row_digests import RowDigests
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.state_reader import read_versions
from cdc.kafka.topic_reader import open_reader
from cdc.kafka.topic_rows import CACHE_KIBIBYTES, TopicRows
from cdc.model.errors import BrokerError, UnreachableError, WatershedError
from cdc.model.events import pack_version
from cdc.ports.chunk_reader import (
    Answer,
    KeysRead,
    ReadFailed,
    ReadTopic,
    ScanLostError,
    TopicRead,
    TopicRequest,
)

log = structlog.get_logger(__name__)

PAGE_KEYS: Final = 1_000
PAGE_BYTES: Final = 1024 * 1024
QUEUE_KIBIBYTES_MAX: Final = 16 * 1024
NEXT_AFTER_FILE: Final = (
    "free space in the folder for temporary files, or set SQLITE_TMPDIR; or read all rows without comparing them: "
    "cdc snapshot start"
)
_BATCH_KEYS: Final = 2_000
_JOIN_S: Final = 2.0

_EPOCH: Final = b',"epoch":'
_PLACE: Final = re.compile(rb',"epoch":(\d{1,10}),"seq":(\d{1,20}),')


class _ClosedError(Exception):
    """The reader was closed: nobody waits for the answer."""


class KafkaKeyReader:
    """Implements ChunkReader[TopicRequest], with a thread that starts at the first request, and TopicComparison. Both
    are in cdc/ports/chunk_reader.py."""

    def __init__(self, kafka: KafkaConfig, context: EnvelopeContext) -> None:
        """`context`: of the records that are compared."""
        self._kafka = kafka
        self._context = context
        self._compared: tuple[str, TopicRows] | None = None  # the last reading of a topic's rows, with its name
        self._requests: queue.SimpleQueue[TopicRequest | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, request: TopicRequest) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="watershed keys", daemon=True)
            self._thread.start()
        self._requests.put(request)

    def answers(self) -> list[Answer]:
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        self._closing.set()
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def differing(self, scan: str, lines: Sequence[bytes]) -> tuple[bytes, ...]:
        name, rows = self._compared or ("", None)
        if rows is None or name != scan:
            raise ScanLostError("the topic is being read again", "nothing to do: the chunk is compared afterwards")
        try:
            return rows.differing(lines)
        except sqlite3.Error as error:  # of the temporary file; or it was closed, because another reading began
            raise ScanLostError(f"rows of a topic that are compared: {error}", NEXT_AFTER_FILE) from error

    # ---- in the thread

    def _run(self) -> None:
        scan = ""
        pages: Iterator[tuple[bytes, ...]] = iter(())
        while (request := self._requests.get()) is not None and not self._closing.is_set():
            topic = request.schema.topic if isinstance(request, ReadTopic) else request.topic
            try:
                if isinstance(request, ReadTopic):
                    scan, rows = request.scan, self._read_rows(request)
                    pages = _paged(rows.unmet())
                    self._answers.put(TopicRead(request.nonce, rows.count()))
                    continue
                if request.scan != scan:
                    scan, pages = request.scan, self._pages(request.topic, request.below)
                keys = next(pages, ())
                if not keys and self._compared is not None and self._compared[0] == scan:
                    self._forget_rows()  # the last page: all chunks were compared
                self._answers.put(KeysRead(request.nonce, keys, is_end=not keys))
            except _ClosedError:
                return
            except WatershedError as error:
                scan = ""
                self._answers.put(ReadFailed(request.nonce, error, is_permanent=isinstance(error, BrokerError)))
            except sqlite3.Error as error:  # an error of the temporary file
                scan = ""
                failure = UnreachableError(f"keys of topic {topic}: {error}", NEXT_AFTER_FILE)
                self._answers.put(ReadFailed(request.nonce, failure, is_permanent=False))
        self._forget_rows()

    def _read_rows(self, request: ReadTopic) -> TopicRows:
        """Reads the topic to the end that it has now."""
        self._forget_rows()
        versions = read_versions(self._kafka, self._context.prefix, request.schema.table)
        rows = TopicRows(RowDigests(request.schema, self._context, versions))
        last: dict[bytes, int | None] = {}
        for key, value in self._records(request.schema.topic):
            is_swept = value is not None and request.floor > 0 and version_of(value) < request.floor
            last[key] = None if is_swept else rows.digest(value)
            if len(last) >= _BATCH_KEYS:
                rows.note(last)
                last = {}
        rows.note(last)
        self._compared = request.scan, rows
        return rows

    def _forget_rows(self) -> None:
        if self._compared is not None:
            self._compared[1].close()
            self._compared = None

    def _pages(self, topic: str, below: int | None) -> Iterator[tuple[bytes, ...]]:
        """Yields pages of keys, none of them empty."""
        with closing(sqlite3.connect("", isolation_level=None)) as live:
            live.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
            live.execute("CREATE TABLE live (key BLOB PRIMARY KEY) WITHOUT ROWID")
            live.execute("BEGIN")
            self._read(topic, below, live)
            yield from _paged(key for (key,) in live.execute("SELECT key FROM live ORDER BY key"))

    def _read(self, topic: str, below: int | None, live: sqlite3.Connection) -> None:
        rows: dict[bytes, bool] = {}  # key → whether its last record among these is a row
        for key, value in self._records(topic):
            rows[key] = value is not None and (below is None or version_of(value) < below)
            if len(rows) >= _BATCH_KEYS:
                _note(live, rows)
                rows = {}
        _note(live, rows)

    def _records(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields key and value, as JSON, of each record that has a key, up to the end that the topic has now."""
        plain = record_reader(self._kafka).plain
        with open_reader(self._kafka, settings={"queued.max.messages.kbytes": QUEUE_KIBIBYTES_MAX}) as reader:
            for partition in reader.partitions(topic):
                for message in reader.read(topic, partition, while_waiting=self._require_open):
                    key = plain(message.key())
                    if key is not None:
                        yield key, plain(message.value())

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise _ClosedError


def _note(live: sqlite3.Connection, rows: Mapping[bytes, bool]) -> None:
    """Adds the keys that are rows now, and removes the others."""
    live.executemany("INSERT OR IGNORE INTO live VALUES (?)", [(key,) for key, is_row in rows.items() if is_row])
    live.executemany("DELETE FROM live WHERE key = ?", [(key,) for key, is_row in rows.items() if not is_row])


def version_of(value: bytes) -> int:
    """Returns the version of a row record. It stands behind the user's columns, so the last match is ours."""
    place = _PLACE.match(value, max(value.rfind(_EPOCH), 0))
    try:
        return pack_version(int(place[1]), int(place[2])) if place is not None else 0
    except ValueError:
        return 0  # not a record of capture: older than any version


def _paged(keys: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    page: list[bytes] = []
    size = 0
    for key in keys:
        page.append(key)
        size += len(key)
        if len(page) == PAGE_KEYS or size >= PAGE_BYTES:
            yield tuple(page)
            page, size = [], 0
    if page:
        yield tuple(page)

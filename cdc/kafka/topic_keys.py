"""The keys of a topic whose last record is a row, in pages, to be compared with the source.

A topic of any size is read once, from its beginning to its end at that time. The keys are kept in a temporary SQLite
database, of which CACHE_KIBIBYTES are in memory and the rest in a file that disappears with the process.
"""

import queue
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Final

import structlog

from cdc.config.settings import KafkaConfig
from cdc.kafka.topic_reader import open_reader
from cdc.model.errors import BrokerError, UnreachableError, WatershedError
from cdc.model.events import pack_version
from cdc.ports.chunk_reader import Answer, KeyPage, KeysRead, ReadFailed

log = structlog.get_logger(__name__)

PAGE_KEYS: Final = 1_000
PAGE_BYTES: Final = 1024 * 1024
CACHE_KIBIBYTES: Final = 16 * 1024
QUEUE_KIBIBYTES_MAX: Final = 16 * 1024
_BATCH_KEYS: Final = 2_000
_JOIN_S: Final = 2.0

_EPOCH: Final = b',"epoch":'
_SEQ: Final = b',"seq":'


class _ClosedError(Exception):
    """The reader was closed: nobody waits for the answer."""


class KafkaKeyReader:
    """Implements cdc.ports.chunk_reader.ChunkReader[KeyPage], with a thread that starts at the first request."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._requests: queue.SimpleQueue[KeyPage | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, page: KeyPage) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="watershed keys", daemon=True)
            self._thread.start()
        self._requests.put(page)

    def answers(self) -> list[Answer]:
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        self._closing.set()
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    # ---- in the thread

    def _run(self) -> None:
        scan = ""
        pages: Iterator[tuple[bytes, ...]] = iter(())
        while (request := self._requests.get()) is not None and not self._closing.is_set():
            if request.scan != scan:
                scan, pages = request.scan, self._pages(request.topic, request.below)
            try:
                keys = next(pages, ())
                self._answers.put(KeysRead(request.nonce, keys, is_end=not keys))
            except _ClosedError:
                return
            except WatershedError as error:
                scan = ""
                self._answers.put(ReadFailed(request.nonce, error, is_permanent=isinstance(error, BrokerError)))
            except sqlite3.Error as error:  # an error of the temporary file
                scan = ""
                hint = "free space in the folder for temporary files, or set SQLITE_TMPDIR"
                failure = UnreachableError(f"keys of topic {request.topic}: {error}", hint)
                self._answers.put(ReadFailed(request.nonce, failure, is_permanent=False))

    def _pages(self, topic: str, below: int | None) -> Iterator[tuple[bytes, ...]]:
        """Yields pages of keys, none of them empty."""
        with closing(sqlite3.connect("", isolation_level=None)) as live:
            live.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
            live.execute("CREATE TABLE live (key BLOB PRIMARY KEY) WITHOUT ROWID")
            live.execute("BEGIN")
            self._read(topic, below, live)
            yield from _paged(key for (key,) in live.execute("SELECT key FROM live ORDER BY key"))

    def _read(self, topic: str, below: int | None, live: sqlite3.Connection) -> None:
        with open_reader(self._kafka, settings={"queued.max.messages.kbytes": QUEUE_KIBIBYTES_MAX}) as reader:
            rows: dict[bytes, bool] = {}  # key → whether its last record among these is a row
            for partition in reader.partitions(topic):
                for message in reader.read(topic, partition, while_waiting=self._require_open):
                    key, value = message.key(), message.value()
                    if key is not None:
                        rows[key] = value is not None and (below is None or _version(value) < below)
                    if len(rows) >= _BATCH_KEYS:
                        _note(live, rows)
                        rows = {}
            _note(live, rows)

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise _ClosedError


def _note(live: sqlite3.Connection, rows: Mapping[bytes, bool]) -> None:
    """Adds the keys that are rows now, and removes the others."""
    live.executemany("INSERT OR IGNORE INTO live VALUES (?)", [(key,) for key, is_row in rows.items() if is_row])
    live.executemany("DELETE FROM live WHERE key = ?", [(key,) for key, is_row in rows.items() if not is_row])


def _version(value: bytes) -> int:
    """Returns the version of a row record. It stands behind the user's columns, so the last match is ours."""
    at = value.rfind(_EPOCH)
    digits = value[at + len(_EPOCH) : at + len(_EPOCH) + 64].split(b",", 2)
    with suppress(ValueError, IndexError):
        if at >= 0 and digits[1].startswith(_SEQ[1:]):
            return pack_version(int(digits[0]), int(digits[1][len(_SEQ) - 1 :]))
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

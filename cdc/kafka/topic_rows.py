"""The rows of a topic, by key and digest, for the comparison with a table's rows.

They are kept in a temporary SQLite database, of which CACHE_KIBIBYTES are in memory and the rest in a file that
disappears with the process: some 25 bytes for each key, and its length. A bit for each key, in memory, says whether the
table has it.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cdc.formats.records import is_delete
from cdc.formats.row_digests import RowDigests

CACHE_KIBIBYTES: Final = 16 * 1024
_PAGE_KEYS: Final = 1_000
_LOOKUP_KEYS: Final = 500  # in one statement


class TopicRows:
    """Written by one thread; then compared by several. Raises sqlite3.Error for errors of the temporary file."""

    def __init__(self, digests: RowDigests) -> None:
        self._digests = digests
        self._lock = threading.Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        self._database.execute(
            "CREATE TABLE rows (key BLOB PRIMARY KEY, number INTEGER NOT NULL, digest INTEGER NOT NULL) WITHOUT ROWID"
        )
        self._database.execute("BEGIN")
        self._numbers = 0
        self._met = bytearray()  # a bit for each number: whether the table has the row

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # ---- the topic

    def digest(self, value: bytes | None) -> int | None:
        """Returns the digest of the row in a record's value; None for the record of a row that is gone."""
        return None if value is None or is_delete(value) else self._digests.of_value(value)

    def note(self, last: Mapping[bytes, int | None]) -> None:
        """Notes the last records of these keys, in the order of the topic: digests, None for rows that are gone."""
        rows = [(key, self._numbers + i, digest) for i, (key, digest) in enumerate(last.items()) if digest is not None]
        gone = [(key,) for key, digest in last.items() if digest is None]
        with self._lock:
            self._database.executemany(
                "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET digest = excluded.digest", rows
            )
            self._database.executemany("DELETE FROM rows WHERE key = ?", gone)
        self._numbers += len(last)
        self._met.extend(bytes(self._numbers // 8 + 1 - len(self._met)))

    def count(self) -> int:
        """Returns the number of rows."""
        with self._lock:
            (count,) = self._database.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)

    # ---- the table

    def differing(self, lines: Sequence[bytes]) -> tuple[bytes, ...]:
        """Returns the lines of COPY whose rows the topic does not have, and notes that the table has their keys. A line
        of which no record can be made differs."""
        found = [self._digests.of_line(line) for line in lines]
        known: dict[bytes, int] = {}
        with self._lock:
            for begin in range(0, len(found), _LOOKUP_KEYS):
                keys = [row[0] for row in found[begin : begin + _LOOKUP_KEYS] if row is not None]
                for key, number, digest in self._looked_up(keys):
                    known[key] = digest
                    self._met[number >> 3] |= 1 << (number & 7)
        return tuple(line for line, row in zip(lines, found, strict=True) if row is None or known.get(row[0]) != row[1])

    def _looked_up(self, keys: Sequence[bytes]) -> list[tuple[bytes, int, int]]:
        """Returns key, number and digest of those that the topic has."""
        statement = f"SELECT key, number, digest FROM rows WHERE key IN ({','.join('?' * len(keys))})"  # noqa: S608
        return self._database.execute(statement, keys).fetchall()

    def unmet(self) -> Iterator[bytes]:
        """Yields the keys of rows that no chunk had, ascending. To be called when all chunks were compared."""
        if int.from_bytes(self._met).bit_count() == self.count():
            return  # the usual case, in which no page has to be read
        last = b""
        while True:
            with self._lock:
                page = self._database.execute(
                    "SELECT key, number FROM rows WHERE key > ? ORDER BY key LIMIT ?", (last, _PAGE_KEYS)
                ).fetchall()
            if not page:
                return
            yield from (key for key, number in page if not self._met[number >> 3] >> (number & 7) & 1)
            last = page[-1][0]

"""What the source's server knows of types: see cdc.pgoutput.binary_rows."""

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

import psycopg
from psycopg import pq

from cdc.config.settings import SourceConfig
from cdc.pgoutput.binary_rows import TypeQuery
from cdc.postgres.connection import connect, holds_any_bytes, lost, says_lost

# Of one statement: a row of a result has at most 1,664 columns.
QUESTIONS_MAX: Final = 1_000
QUESTION_BYTES_MAX: Final = 64 * 1024 * 1024
# Meanwhile the stream's server hears nothing of us.
_SETTINGS: LiteralString = "SET statement_timeout = '20s'; SET default_transaction_read_only = on"
_SEND_FUNCTIONS: LiteralString = """
WITH RECURSIVE base AS (
  SELECT oid AS asked, oid, typtype, typbasetype, typsend FROM pg_type WHERE oid = ANY (%s)
  UNION ALL
  SELECT b.asked, t.oid, t.typtype, t.typbasetype, t.typsend FROM base b JOIN pg_type t ON t.oid = b.typbasetype
  WHERE b.typtype = 'd'
)
SELECT asked::int8, oid::int8, typsend::text FROM base WHERE typtype <> 'd'
"""


class PostgresTypes:
    """See cdc.pgoutput.binary_rows.TypeServer. Its connection is made when it is first needed, with the settings that
    the stream has: they give the texts their form."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._connection: psycopg.Connection | None = None

    @says_lost
    def send_functions(self, oids: Sequence[int]) -> Mapping[int, tuple[int, str]]:
        rows = self._connected().execute(_SEND_FUNCTIONS, [list(oids)]).fetchall()
        return {asked: (base, function) for asked, base, function in rows}

    def texts(self, questions: Sequence[TypeQuery]) -> Sequence[bytes | None]:
        texts: list[bytes | None] = []
        for part in _parts(questions):
            texts += self._texts(part)
        return texts

    def _texts(self, questions: Sequence[TypeQuery]) -> Sequence[bytes | None]:
        """A value that the server refuses is found by halves."""
        pgconn = self._connected().pgconn
        selected = ", ".join(f"${i + 1}" for i in range(len(questions)))
        result = pgconn.exec_params(
            f"SELECT {selected}".encode(),
            [content for _, content in questions],
            [oid for oid, _ in questions],
            [pq.Format.BINARY] * len(questions),
            pq.Format.TEXT,
        )
        if result.status == pq.ExecStatus.TUPLES_OK:
            return [result.get_value(0, i) for i in range(len(questions))]
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if pgconn.status != pq.ConnStatus.OK or state.startswith("53"):  # insufficient resources
            raise lost((result.error_message or b"").decode("utf-8", "replace"))
        if len(questions) == 1:
            return [None]
        half = len(questions) // 2
        return [*self._texts(questions[:half]), *self._texts(questions[half:])]

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = connect(self._source, application="watershed binary")
            self._connection.execute(_SETTINGS)
            if holds_any_bytes(self._connection.pgconn):
                self._connection.execute("SET client_encoding = 'SQL_ASCII'")
        return self._connection

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()


def _parts(questions: Sequence[TypeQuery]) -> Sequence[Sequence[TypeQuery]]:
    """For a statement each."""
    parts: list[list[TypeQuery]] = [[]]
    size = 0
    for question in questions:
        size += len(question[1])
        if parts[-1] and (len(parts[-1]) >= QUESTIONS_MAX or size > QUESTION_BYTES_MAX):
            parts.append([])
            size = len(question[1])
        parts[-1].append(question)
    return parts

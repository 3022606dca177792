"""Errors that reach a user: each says what happened, where, and the next step. Never row values, never secrets."""

from typing import ClassVar, Final

# Next steps that several errors have.
NEXT_AFTER_GAP: Final = (
    "changes may be missing from the topics: cdc snapshot heal compares all rows, and publishes what differs"
)
NEXT_AFTER_OTHER_SERVER: Final = (
    "correct source.dsn; or, if the database was upgraded or moved to this server: cdc source move, which checks that "
    "it is the same one"
)
NEXT_AFTER_ALTER: Final = (
    "undo the change, or remove the table from source.tables: as soon as the table can be captured, it is added again "
    "automatically, and all its rows are read again"
)
NEXT_AFTER_REPLACED: Final = (
    "nothing to do if the new table has the key of the old one: it is added again automatically, and all its rows are "
    "read; otherwise cdc table list shows what it lacks"
)
NEXT_AFTER_STOP: Final = "then cdc table start {table}: all its rows are read again"


class WatershedError(Exception):
    """An error with its cause (`message`) and the next step (`hint`). The CLI prints it without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


class ConfigError(WatershedError):
    """The configuration can't be used. Nothing was written."""

    exit_code = 2


class SourceError(WatershedError):
    """The source database does not meet capture's requirements (permissions, settings, tables)."""


class BrokerError(WatershedError):
    """Kafka does not meet capture's requirements (unreachable, a topic of the wrong kind)."""


class UnreachableError(WatershedError):
    """A server does not answer. At a start the command ends with it; later the connection is tried again."""

    exit_code = 3


class NotInTimeError(WatershedError):
    """What was asked for was not reached within a timeout. It goes on, or can be asked for again as it is."""

    exit_code = 7


class UnknownIdError(WatershedError):
    """The schema registry has no schema with this id."""


class StackError(WatershedError):
    """A server of the development stack could not be started, or died."""


class ProtocolError(WatershedError):
    """Bytes that violate PostgreSQL's protocol. The error has the message's type, the offset and the position."""


class MalformedValueError(ProtocolError):
    """A text that is not a value of the type as PostgreSQL prints it. The message names the type ("a date"), never the
    value."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a value is not {what} as PostgreSQL prints it in Watershed's session",
            "a pooler in between may have changed the session's settings, or the stream is damaged",
        )


# Helps with every chosen form, whether the column may be null or not.
_OTHER_FORM: Final = (
    "choose another mode in section format, or profile readable without one, which can represent every value"
)


class UnconvertibleError(MalformedValueError):
    """A value that the form chosen for its type can't represent. The message says which values it can, never the
    value."""

    def __init__(self, what: str, hint: str = _OTHER_FORM) -> None:
        ProtocolError.__init__(self, f"a value is not {what}, and the chosen format can represent nothing else", hint)


class GapError(WatershedError):
    """History that may hide a change: slot lost, position not on the source's timeline, topic truncated. Publishing
    stops (P4).

    `phantom`: the LSNs [from, to) of the log that is published and that the source does not have; None if there is
    none, or if it is not known. In the topics these are the changes of the position's epoch whose `source.commit_lsn`
    is not below `from`, and columns that were read again (`source.filled`) shortly before."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "", *, phantom: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.phantom = phantom


class OldPrimaryError(GapError):
    """The server is on a timeline that the position has left: another one is the primary. It may be found again, so the
    gap is never healed without an operator."""


class OtherDatabaseError(GapError):
    """The source is another database than the one that was captured. Healing would delete the rows that it does not
    have, so only `cdc source move` leads there. The right server may be found again.

    `server`: system identifier and name of the database that was found."""

    def __init__(self, message: str, hint: str, server: tuple[str, str]) -> None:
        super().__init__(message, hint)
        self.server = server


class UnsupportedChangeError(WatershedError):
    """A change that can't be published (a table that lost its key, text that is not UTF-8). Its table stops before the
    change, the others continue. Earlier rows of that table in the same transaction are published only if the
    transaction spans several Kafka transactions.

    `table`: schema and name; None if they are not known: then capture stops. `is_held`: the catalog can't show that the
    cause was repaired, so the table stays stopped until an operator starts it."""

    def __init__(
        self, message: str, hint: str = "", *, table: tuple[str, str] | None = None, is_held: bool = True
    ) -> None:
        super().__init__(message, hint)
        self.table = table
        self.is_held = is_held


class DamagedTextError(UnsupportedChangeError):
    """A value that is not UTF-8, from a server that promises UTF-8: it was damaged in transit, or is damaged on the
    server. The service reads it again, and stops the table if the server sends the same bytes each time.

    `near`: a digest of the bytes and of those before them, the same whenever the same bytes are sent."""

    def __init__(self, where: str, table: tuple[str, str], near: bytes) -> None:
        super().__init__(
            f"{where}: a value is not UTF-8, which the encoding of the database promises",
            "find out what alters bytes between the server and capture: a proxy, a network card, memory",
            table=table,
        )
        self.where = where
        self.near = near

    def repeated(self, times: int) -> UnsupportedChangeError:
        """Returns the error for bytes that were the same each of the `times` that they were read."""
        return UnsupportedChangeError(
            f"{self.where}: a value is not UTF-8: the server sent the same bytes {times} times",
            "the value is damaged in the database: correct it there (pg_amcheck finds more), "
            + NEXT_AFTER_STOP.format(table=".".join(self.table or ())),
            table=self.table,
        )


class UnpublishableError(UnsupportedChangeError):
    """A record that is larger than its topic allows. `key` and `value` are for a dead letter, not for messages."""

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        table: tuple[str, str],
        key: bytes,
        keys: tuple[bytes, ...],
        value: bytes | None,
    ) -> None:
        super().__init__(message, hint, table=table)
        self.key = key
        self.keys = keys  # of all records of the change
        self.value = value


class ConnectionLost(WatershedError):  # noqa: N818
    """A server closed the connection or fenced capture. The next session starts from the position record."""

    exit_code = 3

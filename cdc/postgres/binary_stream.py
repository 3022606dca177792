"""The log in binary format, with the server's help to turn it into texts: see cdc.pgoutput.binary_rows."""

from cdc.config.settings import SourceConfig
from cdc.model.lsn import Lsn
from cdc.pgoutput.binary_rows import BinaryMessages
from cdc.ports.stream import LogStream
from cdc.postgres.types import PostgresTypes


class BinaryStream:
    """See cdc.ports.stream.LogStream: one that comes in binary format, as if it came as text."""

    def __init__(self, stream: LogStream, source: SourceConfig, row_bytes_max: int) -> None:
        """`row_bytes_max`: as BinaryMessages has it."""
        self._stream = stream
        self._types = PostgresTypes(source)
        self._rows = BinaryMessages(self._types, row_bytes_max)

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
        return self._rows.with_texts(self._stream.read(messages_max, bytes_max))

    def wait(self, timeout_s: float) -> None:
        self._stream.wait(timeout_s)

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        self._stream.send_status(received, confirmed, reply_requested=reply_requested)

    def close(self) -> None:
        """Of the server's help; the stream is another's. Idempotent."""
        self._types.close()

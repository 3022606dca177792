"""Records about the jobs of sinks in the progress topic, which these jobs and `cdc rebuild` write."""

from typing import Literal

from cdc.model.control import Record
from cdc.model.events import TableId


class PerSinkRecord(Record):
    """A record about one sink."""

    sink: str

    @classmethod
    def key_of(cls, sink: str) -> str:
        return f"{cls.KEY}{sink}"

    @property
    def record_key(self) -> str:
        return self.key_of(self.sink)


class PerGenerationRecord(Record):
    """A record about one generation of a sink."""

    sink: str
    generation: int

    @classmethod
    def key_of(cls, sink: str, generation: int) -> str:
        return f"{cls.KEY}{sink}/{generation}"

    @property
    def record_key(self) -> str:
        return self.key_of(self.sink, self.generation)


class SinkErrorRecord(PerSinkRecord):
    """The last error of a sink's job. It is over if the sink's own record is newer."""

    KEY = "sink-error/"
    message: str
    next: str
    is_final: bool  # no restart helps: the sink has stopped
    at_us: int  # µs since 1970


class BatchEndRecord(PerGenerationRecord):
    """A sink's driver asks the tasks of the batch that one of its generations is running to end."""

    KEY = "batch-end/"
    at_us: int  # µs since 1970

    @classmethod
    def key_of(cls, sink: str, generation: int) -> str:
        """Ends with a slash, so that no key is the beginning of another."""
        return f"{super().key_of(sink, generation)}/"


class QueryRecord(PerGenerationRecord):
    """What Spark says about the query of one of a sink's generations: about the last batch that has ended, and how
    often queries have failed. The position is in SinkRecord."""

    KEY = "query/"
    failures: int = 0  # queries that ended with an error since the sink's process started
    batch: int | None = None  # Spark's number of the batch; None: none has ended yet
    batch_ms: int = 0  # the batch's duration
    task_ms: int = 0  # of this, in which it was written; the rest is Spark's planning and logs
    rows: int = 0  # of the DataFrame: pieces
    records: int = 0  # in these pieces
    bytes: int = 0
    ended_us: int = 0  # when the batch ended, µs since 1970
    shortage: str = ""  # why it waits for batches of other queries
    shortage_next: str = ""


class MappingsRecord(PerSinkRecord):
    """The mappings with which the rows of a sink's store were written, and are to be written. While a table is built
    again for a changed mapping, its serving rows are written with the one that they have."""

    KEY = "sink-mappings/"
    mappings: dict[str, str]  # TableMapping.fingerprint → the mapping as JSON, without the key of hashes


class RebuildRecord(PerSinkRecord):
    """The last request to build a sink's store again, and what became of it. `cdc rebuild` writes it with status
    `asked`, the sink's job writes every later status."""

    KEY = "rebuild/"
    request: str
    action: Literal["rebuild", "rollback", "drop"]
    status: Literal["asked", "running", "done", "failed", "cancelled"]
    keeps_old: bool = True  # whether the replaced generation stays for a rollback
    # schema.table of the tables that are built, whose mapping has changed; the new generation adopts the others as they
    # are. Empty: all tables are built.
    tables: tuple[str, ...] = ()
    generation: int = 0  # that is being built; 0 until it is known
    message: str = ""
    next: str = ""
    asked_us: int  # µs since 1970

    @property
    def table_ids(self) -> frozenset[TableId] | None:
        """Returns the tables that are built; None: all."""
        return frozenset(map(TableId.parse, self.tables)) or None

    @property
    def is_open(self) -> bool:
        return self.status in ("asked", "running")

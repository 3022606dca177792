"""The options of a sink's stream, beside those that every use of the data source has. Pure."""

from collections.abc import Mapping
from typing import Self

import msgspec

from cdc.config.table_choice import matches
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.sink_records import JobId
from spark_jobs.source.names import SINK_OPTION


class SinkStreamOptions(msgspec.Struct, frozen=True):
    """What a sink's query reads, and in which portions."""

    name: str
    generation: int
    job_id: JobId  # of the job whose position is where the query begins
    tables: tuple[str, ...]  # patterns
    exclude_tables: tuple[str, ...]  # patterns
    task_count_max: int
    piece_bytes_max: int  # of a row, roughly
    # A live batch lasts for so long, and its rows flow while it lasts; 0: a bounded batch, up to the topics' ends.
    live_s: float = 0.0
    at_cuts: bool = False  # a bounded batch goes up to SinkRecord.cut_offsets instead
    task_bytes_max: int | None = None  # that a task reads of a bounded batch, roughly; None: no limit

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Raises ConfigError."""
        try:
            return msgspec.json.decode(given[SINK_OPTION], type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f'format("watershed"): option {SINK_OPTION} can\'t be read: {error}',
                "it is for Watershed's own sinks; leave it out, and choose a table",
            ) from error

    def holds(self, table: TableId) -> bool:
        """Says whether the store holds the table."""
        return any(matches(pattern, table) for pattern in self.tables) and not any(
            matches(pattern, table) for pattern in self.exclude_tables
        )

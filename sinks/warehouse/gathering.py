"""A warehouse whose changes are gathered over many calls and merged together: each merge is a commit of Iceberg."""

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from cdc.config.stores import WarehouseConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Result
from sinks.errors import SinkError
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Staged, Stager, delete_staged

log = structlog.get_logger(__name__)

FILE_BYTES_MAX: Final = 8 * 1024 * 1024  # of rows that are in memory


class GatheringSink:
    """Keeps one table as WarehouseSink does, with one difference: what `apply` has taken is in the table when
    `make_readable` or `sweep` returns. It is written to files meanwhile, so that memory does not grow. After an error
    the caller opens another object, and applies again what was not merged."""

    def __init__(
        self, sink: WarehouseSink, maintenance: Maintenance, staging: str, section: WarehouseConfig, merge_bytes: int
    ) -> None:
        """`staging`: the URI of the folder for staged files. `merge_bytes`: at this size of the rows they are merged
        before the caller asks for it."""
        self._sink = sink
        self._maintenance = maintenance
        self._staging = staging
        self._section = section
        self._merge_bytes = merge_bytes
        self._stager = Stager(staging, [], s3=section.s3)
        self._staged: list[Staged] = []

    def generation(self) -> int | None:
        return self._sink.generation()

    def begin_generation(self, generation: int) -> None:
        self._sink.begin_generation(generation)

    def discard(self, table: TableId) -> None:
        self._sink.discard(table)

    def prepare(self, schema: TableSchema) -> None:
        self._sink.prepare(schema)
        self._stager = Stager(self._staging, [schema], s3=self._section.s3)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Takes changes. Of several changes of one key between two merges the newest counts."""
        results = self._stager.apply(changes)
        if self._stager.held_bytes >= FILE_BYTES_MAX:
            self._stage()
        if sum(part.byte_count for part in self._staged) >= self._merge_bytes:
            self._merge()
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        self._merge()
        return self._sink.sweep(table, floor)

    def make_readable(self, tables: Collection[TableId]) -> None:
        del tables  # there is one
        self._merge()
        self._maintain()

    def close(self) -> None:
        """Forgets what was not merged."""
        self._delete_staged()
        self._sink.close()

    def _stage(self) -> None:
        try:
            self._staged += self._stager.finish()
        except OSError as error:
            raise SinkError(
                f"warehouse: rows can't be written to {self._staging}: {error}",
                "check that the target's location can be reached, that this user may write to it, and its free space",
            ) from error

    def _merge(self) -> None:
        self._stage()
        if self._staged:
            self._sink.take(self._staged)
            self._delete_staged()

    def _delete_staged(self) -> None:
        staged, self._staged = self._staged, []
        try:
            delete_staged((part.path for part in staged), self._section.s3)
        except OSError as error:  # the next process that opens the warehouse deletes them
            log.warning("staged files were not deleted", folder=self._staging, error=str(error))

    def _maintain(self) -> None:
        """Compacts the table if it has become due. That it fails does not concern the rows."""
        for table in self._sink.take_due():
            try:
                self._maintenance.run_if_due(table, self._sink.without_merges(table))
            except WatershedError as error:
                log.warning("maintenance failed", table=".".join(table), error=error.message, next=error.hint)

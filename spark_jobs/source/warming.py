"""What Spark runs once when a job starts, so that its Python processes are there (spark_jobs.source.warm_up)."""

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class WarmingSource(DataSource):
    """No rows."""

    @classmethod
    def name(cls) -> str:
        return "watershed_warming"

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _NoRows()


class _NoRows(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        del partition
        return iter(())

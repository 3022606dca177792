"""The class that Spark knows.

Spark imports this module in three or four Python processes, one after the other, before a query's first batch. So what
only one of them needs is imported where it is used.
"""

import pickle
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cdc.model.errors import ConfigError
from spark_jobs.source.names import PIECE_DDL, SINK_OPTION

if TYPE_CHECKING:
    from cdc.config.settings import KafkaConfig


class WatershedSource(DataSource):
    """`format("watershed")`. Methods raise WatershedError."""

    kafka: ClassVar[bytes | None] = None  # a pickled KafkaConfig, of a sink's stream, see `configured`

    @classmethod
    def name(cls) -> str:
        return "watershed"

    def schema(self) -> str:
        if SINK_OPTION in self.options:
            return PIECE_DDL
        from contextlib import closing

        from spark_jobs.source.options import read_options
        from spark_jobs.source.pipeline import TableWatch
        from spark_jobs.source.rows import RowForm

        options = read_options(self.options)
        with closing(TableWatch(options)) as watch:
            return RowForm.of(watch.schema_history().newest, options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_jobs.source.batch import BatchReader
        from spark_jobs.source.options import read_options

        options = read_options(self.options)
        if options.records_max is not None:
            raise ConfigError(
                'format("watershed"): option maxRecordsPerBatch is for streams',
                "use spark.readStream, or leave the option out",
            )
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if SINK_OPTION in self.options:
            return self._sink_reader()
        from spark_jobs.source.options import read_options
        from spark_jobs.source.stream import StreamReader

        options = read_options(self.options)
        if options.ending is not None:
            raise ConfigError(
                'format("watershed"): option endingPosition is for batch queries',
                "use spark.read, or leave the option out",
            )
        return StreamReader(options, schema)

    def _sink_reader(self) -> DataSourceStreamReader:
        from spark_jobs.source.sink_options import SinkStreamOptions
        from spark_jobs.source.sink_stream import SinkStreamReader

        sink = SinkStreamOptions.of(self.options)
        if self.kafka is None:
            raise ConfigError(
                f'format("watershed"): option {SINK_OPTION} is for Watershed\'s own sinks',
                "leave it out, and choose a table",
            )
        return SinkStreamReader(pickle.loads(self.kafka), self.options["prefix"], sink)  # noqa: S301 - our own


def configured(kafka: "KafkaConfig") -> type[WatershedSource]:
    """Returns the data source for the sinks of these brokers, as a class that Spark can send to other processes: a
    query's options, which Spark shows, hold no secrets."""
    return type("ConfiguredSource", (WatershedSource,), {"kafka": pickle.dumps(kafka)})

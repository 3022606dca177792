"""The class that Spark knows."""

from contextlib import closing
from typing import ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cdc.config.settings import KafkaConfig
from cdc.model.errors import ConfigError
from spark_jobs.source import piece, sink_options
from spark_jobs.source.batch import BatchReader
from spark_jobs.source.options import read_options
from spark_jobs.source.pipeline import TableWatch
from spark_jobs.source.rows import RowForm
from spark_jobs.source.sink_stream import SinkStreamReader
from spark_jobs.source.stream import StreamReader


class WatershedSource(DataSource):
    """`format("watershed")`. Methods raise WatershedError."""

    kafka: ClassVar[KafkaConfig | None] = None  # of a sink's stream, see `configured`

    @classmethod
    def name(cls) -> str:
        return "watershed"

    def schema(self) -> str:
        if sink_options.OPTION in self.options:
            return piece.DDL
        options = read_options(self.options)
        with closing(TableWatch(options)) as watch:
            return RowForm.of(watch.schema_history().newest, options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.records_max is not None:
            raise ConfigError(
                'format("watershed"): option maxRecordsPerBatch is for streams',
                "use spark.readStream, or leave the option out",
            )
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if sink_options.OPTION in self.options:
            return self._sink_reader()
        options = read_options(self.options)
        if options.ending is not None:
            raise ConfigError(
                'format("watershed"): option endingPosition is for batch queries',
                "use spark.read, or leave the option out",
            )
        return StreamReader(options, schema)

    def _sink_reader(self) -> DataSourceStreamReader:
        sink = sink_options.SinkStreamOptions.of(self.options)
        if self.kafka is None:
            raise ConfigError(
                f'format("watershed"): option {sink_options.OPTION} is for Watershed\'s own sinks',
                "leave it out, and choose a table",
            )
        return SinkStreamReader(self.kafka, self.options["prefix"], sink)


def configured(kafka: KafkaConfig) -> type[WatershedSource]:
    """Returns the data source for the sinks of these brokers, as a class that Spark can send to other processes: a
    query's options, which Spark shows, hold no secrets."""
    return type("ConfiguredSource", (WatershedSource,), {"kafka": kafka})

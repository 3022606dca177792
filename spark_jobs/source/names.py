"""Names of the data source that each of Spark's Python processes needs when it starts: nothing is imported here."""

from typing import Final

SINK_OPTION: Final = "sink"  # has the options of a sink's stream, see spark_jobs.source.sink_options
PIECE_DDL: Final = "records bigint, bytes bigint, content binary"  # see spark_jobs.source.piece

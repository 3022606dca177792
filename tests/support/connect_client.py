"""A client of Spark Connect, in a process of its own: reads a table by `format("watershed")`, prints what it got.

`python -m tests.support.connect_client sc://HOST:PORT CHECKPOINT BOOTSTRAP_SERVERS PREFIX TABLE`
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.source import register


def main(remote: str, checkpoint: str, servers: str, prefix: str, table: str) -> None:
    spark: Any = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    place = {"bootstrap.servers": servers, "prefix": prefix, "table": table}
    frame = spark.read.format("watershed").options(**place).load()
    found: dict[str, Any] = {
        "types": dict(frame.dtypes),
        "present": sorted([row.id, row.name] for row in frame.collect()),
        "sum": frame.groupBy().sum("id").collect()[0][0],
    }
    stream = spark.readStream.format("watershed").options(**place).load()
    query = (
        stream.writeStream.format("memory")
        .queryName("changes")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found["changes"] = sorted([row._op, row.id] for row in spark.table("changes").collect())
    try:
        spark.read.format("watershed").options(**place, nonsense="1").load().collect()
    except Exception as error:  # noqa: BLE001 - what a user sees
        found["refused"] = str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Whether the pieces of a live batch flow: from the data source to the writer of `mapInArrow`, while both run.

This depends on settings, and on how this version of Spark passes rows between its Python processes. A session may have
others: settings of the user, or a driver whose context somebody else has started. Then a row would be written when its
batch ends, half a minute later. So a job that starts tries it, in the thread that starts Spark's Python processes.
"""

import secrets
from concurrent.futures import Future
from typing import Any, Final

import pyspark
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.kafka.daemon_thread import start_thread
from cdc.model.errors import ConfigError
from spark_jobs.failures import reason
from spark_jobs.session import PIPELINING
from spark_jobs.source import require_version
from spark_jobs.source.names import PIECE_DDL
from spark_jobs.source.warming import NAME_OPTION, NEVER, WAIT_OPTION, ProbeSource, Received

log = structlog.get_logger(__name__)

WAIT_S: Final = 20.0  # for a row that takes milliseconds, on a machine that is busy with other things
TRIES: Final = 2
TESTED: Final = "4.1"


def check_versions(spark: Any) -> None:
    """Raises ConfigError for a Spark that the sinks can't run on."""
    require_version(spark)
    own, found = _minor(pyspark.__version__), _minor(spark.version)
    if own != found:
        raise ConfigError(
            f"the driver's Python has pyspark {pyspark.__version__}, and Spark is {spark.version}: they do not "
            "understand each other",
            f"install pyspark {found} in the driver's and the executors' Python, or run Spark {own}",
        )
    if found != TESTED:
        log.warning("this version of Spark is not tested with Watershed", version=spark.version, tested=TESTED)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def start_probe(spark: SparkSession) -> "Future[None]":
    """Starts the Python processes of Spark, and tries whether pieces flow, in another thread. The future raises
    ConfigError if they do not."""
    return start_thread(lambda: probe(spark))


def probe(spark: SparkSession, wait_s: float = WAIT_S) -> None:
    """Raises ConfigError if a row does not reach the writer while the data source runs."""
    for name, found in differences(spark).items():
        log.warning("a setting of Spark differs", setting=name, found=found or "none", needed=PIPELINING[name])
    try:
        took_ms = _tried(spark, wait_s)
    except (PySparkException, Py4JError, OSError) as error:
        log.debug("the probe failed", because=reason(error))  # a lasting error comes again with the first batch
        return
    if took_ms == NEVER:
        raise _refused(spark, wait_s)
    log.debug("pieces flow", took_ms=took_ms)


def _tried(spark: SparkSession, wait_s: float) -> int:
    spark.dataSource.register(ProbeSource)
    took_ms = NEVER
    for _ in range(TRIES):
        name = secrets.token_hex(8)
        place = {NAME_OPTION: name, WAIT_OPTION: str(wait_s)}
        frame = spark.read.format(ProbeSource.name()).options(**place).load()
        (row,) = frame.mapInArrow(Received(name), PIECE_DDL).collect()  # type: ignore[arg-type]
        took_ms = int(row.bytes)
        if took_ms != NEVER:
            break
    return took_ms


def differences(spark: Any) -> dict[str, str]:
    """Returns name → present value of each setting on which pieces depend and that has another value; "": none."""
    core = spark.sparkContext.getConf()
    found = {
        name: (spark.conf.get(name, "") if name.startswith("spark.sql.") else core.get(name, "")) or ""
        for name in PIPELINING
    }
    return {name: value for name, value in found.items() if value.lower() != PIPELINING[name]}


def _refused(spark: SparkSession, wait_s: float) -> ConfigError:
    different = [
        f"{name}={PIPELINING[name]} (it is {value or 'not set'})" for name, value in differences(spark).items()
    ]
    if different:
        hint = (
            f"set {', '.join(different)}: remove it from spark.options, or give it to the one who starts Spark's "
            "context (spark-submit --conf, or the cluster's settings)"
        )
    else:
        hint = f"run Spark {TESTED}, with which Watershed is tested; this is {spark.version}"
    return ConfigError(
        "records would not flow through this Spark: a row of the data source did not reach mapInArrow in "
        f"{wait_s:.0f} s while the source was running, so changes would be readable when a batch ends, half a minute "
        "later",
        hint,
    )

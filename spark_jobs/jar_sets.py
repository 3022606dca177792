"""The sets of jars that the sinks' job needs. No Spark in here."""

from typing import Final

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.config.warehouse_catalog import is_s3
from spark_jobs.class_archive import JAR_SETS

AWS_JARS: Final = "aws"  # for object stores, and for the catalog Glue


def jar_sets(config: Config) -> tuple[str, ...]:
    """The warehouse's are needed without a warehouse, too, because Java's archive of classes is good for one class
    path; those for object stores are 70 MB, and are loaded on demand."""
    stores = (*config.sinks.values(), *(view.target for view in config.views.values()))
    warehouses = [section for section in stores if isinstance(section, WarehouseConfig)]
    is_on_s3 = is_s3(config.spark.checkpoint_location) or any(section.needs_aws for section in warehouses)
    return (*JAR_SETS, AWS_JARS) if is_on_s3 else JAR_SETS

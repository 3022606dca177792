"""Section `spark`: the application that runs the sinks."""

from typing import Annotated

from pydantic import Field

from cdc.config.section import Section


class SparkConfig(Section):
    """The Spark application that runs the sinks."""

    checkpoint_location: str = ".watershed/checkpoints"
    driver_memory: str = "1g"
    trigger_ms: Annotated[int, Field(ge=0)] = 250  # search and cache
    warehouse_trigger_ms: Annotated[int, Field(ge=0)] = 10_000
    bytes_per_write_max: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    options: dict[str, str] = Field(default_factory=dict)  # spark.* properties

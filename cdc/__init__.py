"""Watershed's capture: reads PostgreSQL's log and publishes every committed change to Kafka, exactly once."""

__version__ = "0.1.0"

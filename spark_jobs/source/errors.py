"""Errors of the data source. Spark shows each with its message and next step, in a query's exception."""

from cdc.model.errors import WatershedError


class UnknownTableError(WatershedError):
    """There is no such table at this prefix, or no pipeline."""


class TopicChangedError(WatershedError):
    """The table's topic is not the one whose offsets a checkpoint has, or has lost records: nothing is read."""


class SchemaChangedError(WatershedError):
    """The table has another schema than the one with which a query was started, and Spark can't change a query's."""


class IncompleteTableError(WatershedError):
    """Rows that were committed in the source are not in the table's topic yet."""


class CompactedError(WatershedError):
    """Changes between two positions may have been removed by compaction."""


class UnheldValueError(WatershedError):
    """A value that its column's type in Spark can't hold."""

"""Watershed's public interface for applications: wait until a store shows a write, and publish events of an outbox.

    from watershed import Waiter, wait_for

Public are the names in `__all__`, `watershed.client.outbox`, `sinks.contract` with `StoreConfig` and `StoreType` of
`cdc.config.stores` (for stores of one's own), `spark_jobs.source.register` (for Spark jobs of one's own), the command
`cdc` and its HTTP interface. Everything else is internal.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watershed.client.waiting import Waiter, wait_for

__all__ = ["Waiter", "wait_for"]


def __getattr__(name: str) -> object:
    """Imports what is public when it is used, so that a command does not wait for the clients' libraries."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from watershed.client import waiting

    return getattr(waiting, name)

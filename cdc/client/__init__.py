"""The client for applications: waits until a derived store shows what was written to the source."""

from cdc.client.waiting import Waiter, wait_for

__all__ = ["Waiter", "wait_for"]

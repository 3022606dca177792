"""The client of a running pipeline. Applications wait with it until a derived store shows what they wrote to the source
(`Waiter`), and publish events (`watershed_client.outbox`)."""

from watershed_client.waiting import Waiter, wait_for

__all__ = ["Waiter", "wait_for"]

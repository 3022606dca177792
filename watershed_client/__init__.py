"""The client of a running pipeline. Applications wait with it until a derived store shows what they wrote to the source
(`Waiter`, `wait_for`), and publish events (`watershed_client.outbox`). Monitoring, comparisons and commands follow
positions with it, and send signals.
"""

from watershed_client.waiting import Waiter, wait_for

__all__ = ["Waiter", "wait_for"]

"""Read your own writes from stores that Watershed derives from PostgreSQL.

    client = Client("http://127.0.0.1:8480")
    connection.commit()
    client.wait_for("search", written(connection), timeout=10)

A client keeps no connection and no lock: any number of threads, or of tasks of an `AsyncClient`, may wait at once.
"""

from watershed_client.asking import (
    HistoryChangedError,
    NotShownInTimeError,
    Position,
    RefusedError,
    SetupError,
    StorePosition,
    UnreachableError,
    WaitError,
)
from watershed_client.asynchronous import AsyncClient
from watershed_client.blocking import Client
from watershed_client.commits import Written, written, written_async

__all__ = [
    "AsyncClient",
    "Client",
    "HistoryChangedError",
    "NotShownInTimeError",
    "Position",
    "RefusedError",
    "SetupError",
    "StorePosition",
    "UnreachableError",
    "WaitError",
    "Written",
    "written",
    "written_async",
]

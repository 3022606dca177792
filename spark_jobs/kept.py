"""What a worker process keeps from task to task: clients, which take long to connect."""

from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar


class Closeable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closeable)

# Of a sink one generation is served while another is built. Those that were replaced are not used again.
GENERATIONS_MAX: Final = 2


class KeptClients(Generic[T]):
    """The clients of one kind, of each sink those of the GENERATIONS_MAX generations that were used last. Not
    thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Hashable, T]] = {}  # sink → generation → client, in the order of their use

    def get(self, sink: str, generation: Hashable) -> T | None:
        """Returns the client of a generation, however it is named."""
        held = self._held.get(sink, {})
        client = held.pop(generation, None)
        if client is not None:
            held[generation] = client
        return client

    def keep(self, sink: str, generation: Hashable, client: T) -> T:
        """Takes a client in place of one that was dropped or never made, and returns it. Closes those of generations
        that are too many."""
        held = self._held.setdefault(sink, {})
        held[generation] = client
        for former in list(held)[:-GENERATIONS_MAX]:
            self.drop(sink, former)
        return client

    def drop(self, sink: str, generation: Hashable) -> None:
        """Closes a client, which may be in any state after a failure. Idempotent."""
        client = self._held.get(sink, {}).pop(generation, None)
        if client is not None:
            client.close()

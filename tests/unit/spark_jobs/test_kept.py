"""Of each sink the clients of two generations are kept, and all others are closed once."""

from spark_jobs.kept import KeptClients


class Client:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_generation_that_was_not_used_for_longest_is_closed() -> None:
    kept: KeptClients[Client] = KeptClients()
    first, second, third, other = (Client() for _ in range(4))
    assert kept.get("search", 1) is None
    assert kept.keep("search", 1, first) is first
    kept.keep("search", 2, second)
    kept.keep("cache", 1, other)
    assert kept.get("search", 1) is first
    kept.keep("search", 3, third)
    assert [client.closed for client in (first, second, third, other)] == [0, 1, 0, 0]
    assert kept.get("search", 2) is None
    assert (kept.get("search", 1), kept.get("search", 3), kept.get("cache", 1)) == (first, third, other)


def test_a_dropped_client_is_closed_once_and_made_again() -> None:
    kept: KeptClients[Client] = KeptClients()
    kept.drop("search", 1)
    former, present = Client(), Client()
    kept.keep("search", 1, former)
    kept.drop("search", 1)
    kept.drop("search", 1)
    assert (former.closed, kept.get("search", 1)) == (1, None)
    assert kept.keep("search", 1, present).closed == 0

"""What is remembered of received transactions, and that what is forgotten is known to be."""

from cdc.snapshots.memory import ChangeMemory
from cdc.snapshots.visibility import TransactionSnapshot

T, OTHER = "shop.public.t", "shop.public.other"


def sees_below(xid: int, *but: int) -> TransactionSnapshot:
    return TransactionSnapshot(min([xid, *but]), xid, frozenset(but))


def receive(memory: ChangeMemory, xid: int, *keys: bytes, topic: str = T, seq: int = 1) -> None:
    memory.begin(xid, seq)
    for key in keys:
        memory.touch(topic, key)
    memory.end()


def test_keys_of_unseen_transactions_of_this_table_are_touched() -> None:
    memory = ChangeMemory()
    receive(memory, 10, b"a")
    receive(memory, 11, b"b", b"c")
    receive(memory, 12, b"d", topic=OTHER)
    unseen = memory.unseen(T, sees_below(11))
    assert [key for key in (b"a", b"b", b"c", b"d") if unseen.touches(key)] == [b"b", b"c"]
    assert not unseen.is_forgotten
    assert memory.unseen(T, sees_below(13, 10)).touches(b"a")


def test_an_open_transaction_counts_when_it_has_ended() -> None:
    memory = ChangeMemory()
    memory.begin(10, 1)
    memory.touch(T, b"a")
    assert not memory.unseen(T, sees_below(5)).touches(b"a")
    memory.end()
    assert memory.unseen(T, sees_below(5)).touches(b"a")


def test_truncate_touches_every_key_of_its_table() -> None:
    memory = ChangeMemory()
    memory.begin(10, 1)
    memory.truncate(T)
    memory.end()
    assert memory.unseen(T, sees_below(10)).touches(b"never met")
    assert not memory.unseen(T, sees_below(11)).touches(b"never met")
    assert not memory.unseen(OTHER, sees_below(10)).touches(b"never met")


def test_what_was_not_begun_is_not_remembered() -> None:
    """Changes of a transaction that began before tracking did: a fence covers them."""
    memory = ChangeMemory()
    memory.touch(T, b"a")
    memory.truncate(T)
    memory.end()
    assert not memory.unseen(T, sees_below(1)).touches(b"a")


def test_only_what_all_snapshots_see_is_dropped() -> None:
    memory = ChangeMemory()
    receive(memory, 10, b"a")
    receive(memory, 11, b"b")
    memory.forget_seen_by([sees_below(12), sees_below(11)])
    unseen = memory.unseen(T, sees_below(1))
    assert (unseen.touches(b"a"), unseen.touches(b"b")) == (False, True)


def test_keys_over_the_limit_are_forgotten_the_oldest_first_and_that_is_known() -> None:
    memory = ChangeMemory(keys_max=10)
    receive(memory, 10, *(b"a%d" % n for n in range(6)))
    receive(memory, 11, *(b"b%d" % n for n in range(3)))
    receive(memory, 12, b"c", b"d")
    old = memory.unseen(T, sees_below(10))
    assert old.is_forgotten
    newer = memory.unseen(T, sees_below(11))
    assert not newer.is_forgotten
    assert newer.touches(b"b1")
    assert not memory.unseen(OTHER, sees_below(1)).is_forgotten


def test_one_transaction_larger_than_the_memory_is_forgotten_whole_in_bounded_space() -> None:
    memory = ChangeMemory(keys_max=100)
    memory.begin(10, 1)
    for n in range(10_000):
        memory.touch(T, b"%d" % n)
        memory.touch(OTHER, b"%d" % n)
    memory.end()
    for topic in (T, OTHER):
        unseen = memory.unseen(topic, sees_below(10))
        assert unseen.is_forgotten
        assert unseen.keys == ()
        assert not memory.unseen(topic, sees_below(11)).is_forgotten


def test_the_lowest_number_of_the_unseen_is_known_though_their_keys_are_forgotten() -> None:
    memory = ChangeMemory(keys_max=4)
    receive(memory, 10, b"a", seq=7)
    receive(memory, 11, b"b", b"c", b"d", b"e", b"f", seq=8)
    receive(memory, 12, b"x", topic=OTHER, seq=2)
    assert memory.lowest_unseen_seq(T, sees_below(10)) == 7
    assert memory.lowest_unseen_seq(T, sees_below(11)) == 8
    assert memory.lowest_unseen_seq(T, sees_below(13)) is None
    assert memory.lowest_unseen_seq(OTHER, sees_below(11)) == 2


def test_cleared_is_as_new() -> None:
    memory = ChangeMemory()
    receive(memory, 10, b"a")
    memory.begin(11, 1)
    memory.clear()
    memory.touch(T, b"b")
    memory.end()
    assert not memory.unseen(T, sees_below(1)).touches(b"a")
    assert not memory.unseen(T, sees_below(1)).touches(b"b")


def test_a_watch_has_what_happened_to_its_table_since_it_was_asked_for() -> None:
    memory = ChangeMemory(keys_max=3)
    receive(memory, 10, b"before")
    watch = memory.watch(T)
    receive(memory, 11, b"a", b"a", b"a", b"b")
    receive(memory, 12, b"c", topic=OTHER)
    memory.truncate(OTHER)
    later = memory.watch(T)
    assert (watch.keys, watch.is_truncated) == ({b"a", b"b"}, False)
    receive(memory, 13, b"b", b"c")
    memory.truncate(T)
    assert (watch.keys, watch.is_truncated) == ({b"a", b"b"}, True)
    assert (later.keys, later.is_truncated) == ({b"b"}, True), "three keys in all, each counted once for each"
    memory.clear()
    receive(memory, 14, b"d")
    assert later.keys == {b"b"}


def test_a_watch_of_a_scan_that_began_anew_takes_no_room() -> None:
    memory = ChangeMemory(keys_max=2)
    earlier = memory.watch(T)
    receive(memory, 10, b"a", b"b")
    watch = memory.watch(T, instead_of=earlier)
    receive(memory, 11, b"c", b"d", b"e")
    assert (earlier.keys, watch.keys) == ({b"a", b"b"}, {b"c", b"d"})
    memory.clear()
    assert memory.watch(T, instead_of=watch).keys == set()

"""What is remembered of received transactions, and that what is forgotten is known to be."""

from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.change_memory import ChangeMemory

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


def test_of_several_transactions_that_touched_a_key_the_last_one_counts() -> None:
    memory = ChangeMemory()
    for xid in (10, 11, 13, 12):  # 12 waited for 13's locks, and began before
        receive(memory, xid, b"a")
    assert len(memory) == 1
    assert memory.unseen(T, sees_below(14, 12)).touches(b"a")
    assert not memory.unseen(T, sees_below(14)).touches(b"a")


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
    unseen = memory.unseen(T, sees_below(11))
    assert (unseen.touches(b"a"), unseen.touches(b"b"), unseen.is_forgotten) == (False, True, False)


def test_what_all_snapshots_see_is_not_remembered_at_all() -> None:
    memory = ChangeMemory()
    memory.forget_seen_by([sees_below(100, 60), sees_below(90, 60)])
    assert [memory.begin(xid, 1) for xid in (50, 60, 89, 90, 95)] == [False, True, False, True, True]
    for xid in range(50, 150):
        receive(memory, xid, b"%d" % xid)
    assert len(memory) == 1 + 60


def test_a_chunk_that_is_older_than_what_is_remembered_is_read_again() -> None:
    memory = ChangeMemory()
    receive(memory, 10, b"a", seq=4)
    receive(memory, 20, b"b", seq=5)
    memory.forget_seen_by([sees_below(15)])
    assert memory.unseen(T, sees_below(14)).is_forgotten
    assert memory.lowest_unseen_seq(T, sees_below(14)) == 4
    assert not memory.unseen(T, sees_below(15)).is_forgotten
    assert memory.lowest_unseen_seq(T, sees_below(15)) == 5


def test_keys_over_the_limit_are_forgotten_the_oldest_first_and_that_is_known() -> None:
    memory = ChangeMemory(keys_max=10)
    receive(memory, 10, *(b"a%d" % n for n in range(6)))
    receive(memory, 11, *(b"b%d" % n for n in range(3)))
    receive(memory, 12, b"c", b"d")
    old = memory.unseen(T, sees_below(10))
    assert old.is_forgotten
    assert memory.unseen(T, sees_below(12, 10)).is_forgotten
    newer = memory.unseen(T, sees_below(11))
    assert not newer.is_forgotten
    assert newer.touches(b"b1")
    assert not memory.unseen(OTHER, sees_below(1)).is_forgotten


def test_where_keys_do_not_fit_what_the_newest_snapshot_sees_is_dropped_first() -> None:
    memory = ChangeMemory(keys_max=10)
    memory.forget_seen_by([sees_below(10), sees_below(19)])
    for xid in range(10, 28):
        receive(memory, xid, b"%d" % xid)
    newest = memory.unseen(T, sees_below(19))
    assert not newest.is_forgotten
    assert [newest.touches(b"%d" % xid) for xid in (18, 19, 27)] == [False, True, True]
    assert memory.unseen(T, sees_below(18)).is_forgotten


def test_where_transactions_do_not_fit_their_range_is_known() -> None:
    """The ids wrap around in the middle of it."""
    base = (1 << 32) - 50
    memory = ChangeMemory(keys_max=10, transactions_max=20)
    for number in range(100):
        receive(memory, (base + number) % (1 << 32), b"%d" % number, seq=number)
        assert len(memory) <= 31
    assert memory.unseen(T, sees_below(base + 100, base + 5)).is_forgotten
    assert memory.unseen(T, sees_below(base + 80)).is_forgotten
    assert memory.lowest_unseen_seq(T, sees_below(base + 100, base + 5)) == 0
    # A transaction that ran before all of them, and one that began behind them, hold up nobody.
    later = sees_below(base + 200, base - 1, base + 150)
    assert not memory.unseen(T, later).is_forgotten
    memory.forget_seen_by([later])
    assert (len(memory), memory.lowest_unseen_seq(T, later)) == (0, None)


def test_a_truncate_whose_transaction_is_not_known_any_more_reads_a_chunk_again() -> None:
    memory = ChangeMemory(transactions_max=3)
    for xid in range(10, 15):
        memory.begin(xid, 1)
        memory.truncate(T)
        memory.end()
    unseen = memory.unseen(T, sees_below(11))
    assert unseen.is_forgotten
    assert not memory.unseen(T, sees_below(15)).is_forgotten


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
        assert len(memory) == 2
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


def test_a_watch_that_nobody_holds_takes_no_room_and_no_time() -> None:
    memory = ChangeMemory(keys_max=2)
    memory.forget_seen_by([sees_below(100)])
    watch = memory.watch(T)
    assert memory.begin(10, 1), "a watch is told of what every snapshot sees"
    receive(memory, 10, b"a", b"b")
    assert watch.keys == {b"a", b"b"}
    watch = memory.watch(T)
    receive(memory, 11, b"c", b"d", b"e")
    assert watch.keys == {b"c", b"d"}
    del watch
    assert not memory.begin(12, 1)


def truncate(memory: ChangeMemory, xid: int, topic: str = T, seq: int = 1) -> None:
    memory.begin(xid, seq)
    memory.truncate(topic)
    memory.end()


def test_a_truncate_that_runs_beside_a_later_one_is_not_seen() -> None:
    memory = ChangeMemory()
    truncate(memory, 10)
    truncate(memory, 11)
    assert memory.unseen(T, sees_below(12, 10)).is_truncated
    assert not memory.unseen(T, sees_below(12, 9)).is_truncated


def test_as_many_truncates_as_there_may_be_are_known_by_their_transactions() -> None:
    memory = ChangeMemory(transactions_max=3)
    for xid in (10, 11, 12):
        truncate(memory, xid, seq=xid)
    unseen = memory.unseen(T, sees_below(11))
    assert (unseen.is_truncated, unseen.is_forgotten, len(memory)) == (True, False, 3)
    truncate(memory, 13, seq=13)
    assert len(memory) == 0, "only their range is known"
    assert memory.unseen(T, sees_below(11)).is_forgotten
    assert memory.lowest_unseen_seq(T, sees_below(11)) == 10
    assert memory.lowest_unseen_seq(T, sees_below(14)) is None


def test_a_watch_does_not_forget_a_truncate_for_one_of_another_table() -> None:
    memory = ChangeMemory()
    watch = memory.watch(T)
    truncate(memory, 10)
    truncate(memory, 11, topic=OTHER)
    assert watch.is_truncated


def test_the_lowest_number_is_that_of_the_oldest_unseen_key() -> None:
    memory = ChangeMemory()
    for xid in (10, 11, 12):
        receive(memory, xid, b"%d" % xid, seq=xid - 3)
    assert memory.lowest_unseen_seq(T, sees_below(10)) == 7
    assert memory.lowest_unseen_seq(T, sees_below(11)) == 8


def test_as_many_keys_as_there_may_be_are_kept_and_of_more_the_newer_half_whatever_their_table() -> None:
    memory = ChangeMemory(keys_max=10)
    for xid in range(10, 20):
        receive(memory, xid, b"%d" % xid, topic=OTHER if xid % 2 else T, seq=xid)
    assert len(memory) == 10 and not memory.unseen(T, sees_below(1)).is_forgotten
    receive(memory, 20, b"20", seq=20)
    assert [memory.unseen(T, sees_below(xid)).is_forgotten for xid in (14, 15)] == [True, False]
    assert [memory.unseen(OTHER, sees_below(xid)).is_forgotten for xid in (15, 16)] == [True, False]
    assert memory.unseen(T, sees_below(15)).touches(b"16")


def test_where_the_rest_fits_no_key_is_dropped() -> None:
    memory = ChangeMemory(keys_max=4)
    for xid in (10, 11, 12):
        receive(memory, xid, b"%d" % xid)
    memory.forget_seen_by([sees_below(13)])
    for xid in (13, 14):
        receive(memory, xid, b"%d" % xid)
    unseen = memory.unseen(T, sees_below(13))
    assert (len(memory), unseen.is_forgotten, unseen.touches(b"13")) == (2, False, True)


def test_what_is_seen_is_dropped_when_it_has_become_much_or_old() -> None:
    """To look each time would cost as much as there is."""
    memory = ChangeMemory()
    receive(memory, 10, *(b"%d" % n for n in range(998)))
    truncate(memory, 11)
    memory.forget_seen_by([sees_below(12)])
    assert len(memory) == 999
    receive(memory, 12, b"one more", topic=OTHER)
    memory.forget_seen_by([sees_below(13)])
    assert (len(memory), memory._topics) == (0, {})
    receive(memory, 20, *(b"%d" % n for n in range(1_200)))
    memory.forget_seen_by([sees_below(20)])
    assert (len(memory), memory._prune_at) == (1_200, 2_400)
    old = ChangeMemory()
    receive(old, 10, b"a")
    old.forget_seen_by([sees_below(1 << 30)])
    assert len(old) == 1
    xid = (1 << 30) + 1
    old.forget_seen_by([sees_below(xid)])
    assert len(old) == 0
    receive(old, xid, b"b")
    old.forget_seen_by([sees_below(xid + 1)])
    assert len(old) == 1, "it is young"

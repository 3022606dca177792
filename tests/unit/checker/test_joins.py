"""What the stream need not hold of tables that joined late."""

from tests.checker import joins
from tests.checker.records import changes_of
from tests.unit.checker.made import Log, entry

TABLE = "public.t"
JOINED = {TABLE: [200]}


def test_what_was_written_before_the_table_joined_is_early() -> None:
    journal = [entry(1, "INSERT", None, 1, xid=5, lsn=50), entry(2, "INSERT", None, 2, xid=6, lsn=210)]
    assert joins.part([], journal, JOINED) == ([journal[1]], [(200, journal[0])])
    assert joins.part([], journal, {}) == (journal, [])


def test_of_a_transaction_that_was_under_way_the_stream_may_hold_the_end() -> None:
    journal = [
        entry(1, "INSERT", None, 1, xid=7, lsn=150),
        entry(2, "UPDATE", 1, 2, xid=7, lsn=160),
        entry(3, "INSERT", None, 3, xid=7, lsn=210),
    ]
    log = Log()
    assert joins.part([], journal, JOINED)[0] == journal[2:], "what came after is missed"
    log.change("c", 3, commit_lsn=300)
    assert joins.part(changes_of(log.records), journal, JOINED)[0] == journal[2:]
    log.delete(1, commit_lsn=300)
    log.change("c", 2, commit_lsn=300)
    assert joins.part(changes_of(log.records), journal, JOINED)[0] == journal[1:]
    log.change("c", 1, commit_lsn=300)
    assert joins.part(changes_of(log.records), journal, JOINED) == (journal, [])


def test_what_was_written_while_the_table_was_gone_is_early_at_its_return() -> None:
    journal = [
        entry(1, "INSERT", None, 1, xid=5, lsn=50),
        entry(2, "INSERT", None, 2, xid=7, lsn=210),
        entry(3, "DELETE", 1, None, xid=8, lsn=310),
    ]
    log = Log()
    log.change("c", 2, commit_lsn=220)
    assert joins.part(changes_of(log.records), journal, {TABLE: [200, 400]}) == (
        journal[1:2],
        [(200, journal[0]), (400, journal[2])],
    )

"""Tables that joined when capture was under way: what they wrote before is in their snapshot, not in the stream."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.checker.history import expected_of
from tests.checker.journal import Entry
from tests.checker.records import Change


def part(
    changes: Sequence[Change], journal: Sequence[Entry], joined: Mapping[str, Sequence[int]]
) -> tuple[list[Entry], list[tuple[int, Entry]]]:
    """The journal that the stream has to hold, and the rest, each entry with the LSN where its table joined; rising.
    `joined`: table → LSNs, rising.

    Of a transaction that was under way when its table joined, the stream holds nothing, the end, or all."""
    streamed = Counter((change.xid, change.table) for change in changes if change.op != "r")
    left = Counter[tuple[int, str]]()
    for entry in journal:
        left[entry.xid, entry.table] += len(expected_of(entry))
    kept, early = [], []
    for entry in journal:
        later = [lsn for lsn in joined.get(entry.table, ()) if lsn > entry.lsn]
        place, count = (entry.xid, entry.table), len(expected_of(entry))
        if later and left[place] - count >= streamed[place]:
            left[place] -= count
            early.append((later[0], entry))
        else:
            kept.append(entry)
    return kept, sorted(early, key=lambda change: (change[0], change[1].number))

"""Two readers as one."""

from cdc.ports.chunk_reader import BarrierPassed, KeyPage, KeysRead, TransactionBarrier
from cdc.snapshots.readers import Readers
from tests.support.snapshot_ports import ScriptedReader
from tests.unit.cdc.snapshots.loops import snapshot


def test_requests_go_where_they_belong_and_answers_come_from_both() -> None:
    source, keys = ScriptedReader(), ScriptedReader()
    readers = Readers(source, keys)
    barrier, page = TransactionBarrier("f"), KeyPage("p", "s", "shop.a", None)
    readers.ask(barrier)
    readers.ask(page)
    assert (source.asked, keys.asked) == ([barrier], [page])
    source.coming.append(BarrierPassed("f", snapshot(5)))
    keys.coming.append(KeysRead("p", (), is_end=True))
    assert readers.answers() == [BarrierPassed("f", snapshot(5)), KeysRead("p", (), is_end=True)]
    assert readers.answers() == []

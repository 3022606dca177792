"""Where a session begins."""

from cdc.capture.stream_state import StreamState
from cdc.model.control import PartialTransaction, PositionRecord, SourceIdentity
from cdc.model.lsn import Lsn


def test_a_session_begins_where_its_position_says() -> None:
    partial = PartialTransaction(commit_lsn=200, xid=7, next_index=3)
    source = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
    position = PositionRecord(
        phase="streaming",
        epoch=2,
        seq=41,
        resume_lsn=100,
        partial=partial,
        source=source,
        publication="p",
        protocol="proto_version=1",
        topics={},
    )
    assert StreamState.of(position) == StreamState(Lsn(100), partial, 41, 0)

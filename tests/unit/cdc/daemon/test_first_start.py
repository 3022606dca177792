"""Which database a heal may compare the topics with."""

import pytest

from cdc.daemon.first_start import _require_decided
from cdc.daemon.gap_state import Heal
from cdc.model.control import PositionRecord, SourceIdentity
from cdc.model.errors import OtherDatabaseError
from cdc.postgres.replication import SystemIdentity

POSITION = PositionRecord(
    phase="streaming",
    epoch=3,
    seq=9,
    resume_lsn=100,
    source=SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed"),
    publication="p",
    protocol="proto_version=1",
)


@pytest.mark.parametrize(
    ("moves_to", "server"),
    [(None, ("7", "shop")), (("8", "shop"), ("8", "shop")), (("7", "new"), ("7", "new"))],
)
def test_the_database_of_the_position_or_of_the_move(moves_to: tuple[str, str] | None, server: tuple[str, str]) -> None:
    _require_decided(POSITION, Heal(3, moves_to=moves_to), SystemIdentity(server[0], 1, server[1], promises_utf8=True))


@pytest.mark.parametrize(
    ("moves_to", "server"),
    [(None, ("8", "shop")), (None, ("7", "new")), (("8", "shop"), ("9", "shop")), (("8", "shop"), ("7", "shop"))],
)
def test_no_other_one(moves_to: tuple[str, str] | None, server: tuple[str, str]) -> None:
    """An address can lead to another server between the decision and the heal."""
    identity = SystemIdentity(server[0], 1, server[1], promises_utf8=True)
    with pytest.raises(OtherDatabaseError) as raised:
        _require_decided(POSITION, Heal(3, moves_to=moves_to), identity)
    assert raised.value.server == server

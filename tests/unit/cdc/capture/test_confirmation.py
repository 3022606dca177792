"""What the server may be told."""

import pytest

from cdc.capture.confirmation import Confirmation
from cdc.model.lsn import Lsn


@pytest.mark.invariant(9)
def test_the_position_record_says_what_may_be_confirmed() -> None:
    delivery = Confirmation(Lsn(100))
    assert (delivery.confirmed, delivery.received) == (100, 100)
    delivery.on_received(Lsn(300))
    assert delivery.confirmed == 100
    delivery.on_recorded(Lsn(200))
    assert (delivery.confirmed, delivery.received) == (200, 300)


@pytest.mark.invariant(9)
def test_neither_goes_back() -> None:
    delivery = Confirmation(Lsn(100))
    delivery.on_received(Lsn(300))
    delivery.on_recorded(Lsn(200))
    delivery.on_received(Lsn(250))
    delivery.on_recorded(Lsn(150))
    assert (delivery.confirmed, delivery.received) == (200, 300)


@pytest.mark.invariant(9)
def test_what_was_never_received_is_not_confirmed() -> None:
    with pytest.raises(AssertionError, match="I9"):
        Confirmation(Lsn(100)).on_recorded(Lsn(101))

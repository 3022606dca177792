"""Options that capture's promises rest on are not to be chosen."""

import pytest

from cdc.config.kafka_options import without_ours


def test_options_that_tune_are_taken() -> None:
    options = {"security.protocol": "ssl", "linger.ms": "50"}
    assert without_ours(options) == options


@pytest.mark.parametrize("name", ["isolation.level", "partitioner", "acks", "enable.idempotence", "transactional.id"])
def test_what_exactly_once_rests_on_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} can't be set"):
        without_ours({"linger.ms": "50", name: "0"})

"""`cdc wait` refuses a text that is no LSN with another exit code than a wait that ends too late."""

import pytest

from cdc.model.errors import ConfigError
from operations.cli.wait import wait


@pytest.mark.parametrize("text", ["garbage", "", "0/", "0/16B37480000", "16B3748"])
def test_a_text_that_is_no_lsn_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(ConfigError, match="not an LSN") as refused:
        wait(text)
    assert "for example 0/16B3748" in refused.value.hint

"""The masks that the options name, of section masking and of a sink's mapping."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.masking import Mask, MaskOptions
from cdc.config.settings import MaskingConfig, SourceConfig
from cdc.config.store_mapping import StoreMasks
from cdc.model.events import TableId

TABLE = TableId("public", "people")
KEY = "0123456789abcdef"


def test_both_sections_make_the_same_masks_of_their_names() -> None:
    made = (
        Mask(TABLE, "name", "truncate", 3),
        Mask(TABLE, "phone", "asterisks", 4),
        Mask(TABLE, "mail", "hash", key=KEY.encode()),
    )
    full: Any = {
        "truncate": {"public.people.name": 3},
        "asterisks": {"public.people.phone": 4},
        "hash": ["public.people.mail"],
        "hash_key": KEY,
    }
    plain: Any = {"truncate": {"name": 3}, "asterisks": {"phone": 4}, "hash": ["mail"], "hash_key": KEY}
    source: Any = {"dsn": "host=db", "tables": [str(TABLE)]}
    assert MaskingConfig(**full).masks(SourceConfig(**source)) == made
    assert StoreMasks(**plain).masks(TABLE) == made


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hash": ["mail"]}, "hash requires hash_key, with at least 16 characters"),
        ({"hash": ["mail"], "hash_key": KEY[1:]}, "hash requires hash_key, with at least 16 characters"),
        ({"truncate": {"mail": 1}, "asterisks": {"mail": 1}}, "a column is masked twice"),
        ({"truncate": {"mail": -1}}, "greater than or equal to 0"),
        ({"asterisks": {"mail": 1001}}, "less than or equal to 1000"),
    ],
)
def test_masks_that_can_not_be_applied_are_refused_without_the_key(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as refusal:
        MaskOptions(**options)
    assert KEY[1:] not in str(refusal.value)

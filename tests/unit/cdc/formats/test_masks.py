"""Masks: what stays of a text, and what is refused."""

import hashlib
import hmac

import pytest

from cdc.config.masking import Mask
from cdc.formats.masks import masked, masks_of
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableId
from tests.support import wire

TABLE = wire.CUSTOMERS
SCHEMA, _ = wire.schema_and_relation(
    [
        Column("id", 25, -1, "text", False),
        Column("name", 1043, 24, "character varying(20)", True),
        Column("alias", 16_500, -1, "public.citext", True),
        Column("nick", 16_501, -1, "nick", True, "b", 25),  # a domain
        Column("age", 23, -1, "integer", True),
        Column("doc", 3802, -1, "jsonb", True),
        Column("tags", 1009, -1, "text[]", True, element_oid=25),
    ],
    ["id"],
)
KEY = b"0123456789abcdef"


def apply(mask: Mask, text: str) -> str:
    """Through the latin-1 view and back."""
    return masked(mask)(text.encode().decode("latin-1")).encode("latin-1").decode()


@pytest.mark.parametrize(
    ("text", "kept"),
    [("", ""), ("Zo", "Zo"), ("Zoë", "Zoë"), ("Zoë😀x", "Zoë"), ("abcd", "abc"), ("😀😀😀😀", "😀😀😀")],
)
def test_truncate_counts_characters(text: str, kept: str) -> None:
    assert apply(Mask(TABLE, "name", "truncate", 3), text) == kept


def test_truncate_passes_on_what_is_not_utf_8() -> None:
    assert masked(Mask(TABLE, "name", "truncate", 2))("\xff\xffxx") == "\xff\xff"


def test_asterisks_do_not_tell_the_length() -> None:
    mask = Mask(TABLE, "name", "asterisks", 4)
    assert apply(mask, "") == apply(mask, "a long name") == "****"


def test_a_hash_is_keyed_and_of_the_utf_8_text() -> None:
    expected = hmac.new(KEY, "Zoë".encode(), hashlib.sha256).hexdigest()
    assert apply(Mask(TABLE, "name", "hash", key=KEY), "Zoë") == expected
    assert apply(Mask(TABLE, "name", "hash", key=b"another key"), "Zoë") != expected


def test_a_key_is_never_printed() -> None:
    assert "0123456789" not in repr(Mask(TABLE, "name", "hash", key=KEY))


def test_masks_are_found_by_table() -> None:
    masks = tuple(Mask(TABLE, name, "truncate", 1) for name in ("name", "alias", "nick"))
    assert masks_of(SCHEMA, (*masks, Mask(TableId("public", "other"), "x", "truncate"))) == {m.column: m for m in masks}


@pytest.mark.parametrize(
    ("column", "reported"),
    [
        ("nme", "masking names column nme, which table public.customers does not have"),
        ("id", "column id of table public.customers is part of its key: it can't be masked"),
        ("age", "column age of table public.customers has type integer: only text can be masked"),
        ("doc", "column doc of table public.customers has type jsonb: only text can be masked"),
        ("tags", "column tags of table public.customers has type text[]: only text can be masked"),
    ],
)
def test_what_can_not_be_masked_is_refused(column: str, reported: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        masks_of(SCHEMA, (Mask(TABLE, column, "truncate", 1),))
    assert refusal.value.message == reported

"""Secrets of a configuration in texts that leave the process."""

import pytest
from pydantic import BaseModel, SecretStr

from cdc.config.secrets import hidden, secret_texts


class Sections(BaseModel):
    dsn: SecretStr
    options: dict[str, SecretStr] = {}
    name: str = "not a secret"


@pytest.mark.parametrize(
    ("dsn", "passwords"),
    [
        ("postgresql://me:hunter2@db/shop", {"hunter2"}),
        ("postgresql://me:a%40bcd@db/shop", {"a%40bcd", "a@bcd"}),
        ("host=db password=hunter2 user=me", {"hunter2"}),
        (r"host=db password='it\'s long' user=me", {"it's long", r"it\'s long"}),
        ("https://a:first1@x:9200,https://b:second@y:9200", {"first1", "second"}),
        ("postgresql://me@db/shop", set()),
        ("postgresql://me:x@db/shop", set()),
    ],
)
def test_passwords_within_addresses_are_secrets(dsn: str, passwords: set[str]) -> None:
    assert secret_texts(Sections(dsn=SecretStr(dsn))) == {dsn, *passwords}


def test_all_secrets_are_replaced_the_longest_first() -> None:
    given = Sections(dsn=SecretStr("swordfish and chips"), options={"sasl.password": SecretStr("swordfish")})
    text = hidden("not a secret: swordfish and chips, swordfish", secret_texts(given))
    assert text == "not a secret: **********, **********"

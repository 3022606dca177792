"""Secrets of a configuration, to be hidden in texts that leave the process."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote

from pydantic import BaseModel, SecretStr

from cdc.config.effective import HIDDEN

CHARS_MIN: Final = 4  # a shorter one would be found in any text
_OF_URL: Final = re.compile(r"://[^/@\s:]*:([^/\s]*)@")
_OF_DSN: Final = re.compile(r"""\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))""", re.IGNORECASE)


def secret_texts(config: BaseModel) -> frozenset[str]:
    """Returns the values of all secret options, and the passwords within addresses, also decoded."""
    found = {part for text in _secrets(config) for part in (text, *_passwords(text))}
    return frozenset(text for text in found if len(text) >= CHARS_MIN)


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Returns the text with each secret replaced, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _passwords(text: str) -> Iterator[str]:
    for found in _OF_URL.finditer(text):
        yield from (found[1], unquote(found[1]))
    for found in _OF_DSN.finditer(text):
        written = found[1] or found[2]
        yield from (written, re.sub(r"\\(.)", r"\1", written))


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for _, one in value:
            yield from _secrets(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _secrets(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _secrets(one)

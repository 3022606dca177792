"""Messages that are ours, and those that are not."""

import hmac

import pytest

from cdc.outbox.seal import SealKey

KEY = SealKey(bytes(range(32)))


def test_a_sealed_message_opens_in_its_transaction_alone() -> None:
    message = KEY.seal((7 << 32) + 560, b"content")
    assert KEY.open(message, 560) == b"content"
    assert KEY.open(message, 561) is None


@pytest.mark.parametrize("at", [0, 2, 9, 10, 41, 42, -1])
def test_a_message_with_another_byte_is_refused(at: int) -> None:
    message = bytearray(KEY.seal(560, b"content"))
    message[at] ^= 1
    assert KEY.open(bytes(message), 560) is None


def test_what_is_too_short_or_sealed_with_another_key_is_refused() -> None:
    assert KEY.open(b"", 560) is None
    assert KEY.open(b"w1" + bytes(39), 560) is None
    assert SealKey(bytes(32)).open(KEY.seal(560, b"content"), 560) is None


def test_the_seal_is_hmac_as_everybody_computes_it() -> None:
    assert KEY.seal(1, b"x")[10:42] == hmac.digest(KEY.secret, (1).to_bytes(8) + b"x", "sha256")


def test_the_secret_is_not_told() -> None:
    assert "secret" not in repr(KEY)

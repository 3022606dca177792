"""The seal that tells an event of `cdc.publish` from a message that another role wrote with the same prefix.

Every role may call pg_logical_emit_message(), and the log does not name the caller. So the function, which runs with
its owner's rights, seals each message with a key from a table that publishing roles can't read: HMAC with SHA-256 (RFC
2104) over the transaction's id and the content. A copy of a message is not valid in another transaction.

    w1 | xid 8 | seal 32 | content
"""

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

VERSION: Final = b"w1"
KEY_BYTES: Final = 32
_HEAD_BYTES: Final = len(VERSION) + 8 + 32


@dataclass(frozen=True, slots=True, repr=False)
class SealKey:
    """The secret key. Its repr does not show it."""

    secret: bytes

    def __post_init__(self) -> None:
        assert len(self.secret) == KEY_BYTES

    def seal(self, xid: int, content: bytes) -> bytes:
        """Returns the message as the function writes it. `xid`: pg_current_xact_id(), 64 bits."""
        head = xid.to_bytes(8, "big")
        return VERSION + head + hmac.digest(self.secret, head + content, sha256) + content

    def open(self, message: bytes, xid: int) -> bytes | None:
        """Returns the content; None if the message was not sealed with this key in this transaction. `xid`: 32 bits,
        from the log."""
        if len(message) < _HEAD_BYTES or not message.startswith(VERSION):
            return None
        head, seal, content = message[2:10], message[10:_HEAD_BYTES], message[_HEAD_BYTES:]
        is_ours = hmac.compare_digest(seal, hmac.digest(self.secret, head + content, sha256))
        return content if is_ours and int.from_bytes(head[4:], "big") == xid else None

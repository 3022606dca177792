"""What may be confirmed to the server: only what a committed position record covers (I9). Pure.

The server believes any number that it is told and forgets what it covers, so this object is the only source of it.
"""

from cdc.model.lsn import Lsn


class Confirmation:
    """Keeps the confirmed LSN: never past a committed position record, never past what was received, never back."""

    def __init__(self, resume_lsn: Lsn) -> None:
        self._recorded = resume_lsn
        self._received = resume_lsn

    @property
    def confirmed(self) -> Lsn:
        """What a status update may say."""
        return self._recorded

    @property
    def received(self) -> Lsn:
        """The newest position that the server sent us."""
        return self._received

    def on_received(self, lsn: Lsn) -> None:
        """The server has sent everything up to here."""
        self._received = max(self._received, lsn)

    def on_recorded(self, resume_lsn: Lsn) -> None:
        """A position record with this `resume_lsn` was committed to Kafka."""
        assert resume_lsn <= max(self._received, self._recorded), "I9: recorded what was never received"
        self._recorded = max(self._recorded, resume_lsn)

"""The LSN that may be confirmed to the server: only one that a committed position record covers (I9). Pure.

The server believes any LSN that it receives and forgets the log before it. So while changes are streamed, this object
is the only source of it; before, a session repeats the LSN of the position that it starts from.
"""

from cdc.model.lsn import Lsn


class Confirmation:
    """Keeps the confirmed LSN: never past a committed position record, never past what was received, never back."""

    def __init__(self, resume_lsn: Lsn) -> None:
        self.confirmed = resume_lsn
        self.received = resume_lsn

    def on_received(self, lsn: Lsn) -> None:
        self.received = max(self.received, lsn)

    def on_recorded(self, resume_lsn: Lsn) -> None:
        """A position record with this `resume_lsn` was committed to Kafka."""
        assert resume_lsn <= max(self.received, self.confirmed), "I9: recorded an LSN that was never received"
        self.confirmed = max(self.confirmed, resume_lsn)

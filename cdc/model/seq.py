"""The counter of row records: the `seq` in every version (`epoch << 48 | seq`)."""


class SeqCounter:
    """Numbers the row records of one epoch without a gap.

    One object for a session: the assembler takes numbers for changes, the snapshot engine for rows of chunks, both for
    sweeps that need a version of their own.
    """

    __slots__ = ("last",)

    def __init__(self, last: int) -> None:
        """`last`: the number that was used last; 0 if none was."""
        self.last = last

    @property
    def next(self) -> int:
        """The number of the next row record."""
        return self.last + 1

    def take(self, count: int = 1) -> int:
        """Uses the next `count` numbers. Returns the last of them."""
        self.last += count
        return self.last

"""The masks of columns' values, as in section `masking` of the configuration."""

from dataclasses import dataclass, field
from typing import Literal

from cdc.model.events import TableId


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one column."""

    table: TableId
    column: str
    action: Literal["truncate", "asterisks", "hash"]
    length: int = 0  # characters that are kept; asterisks that are written
    key: bytes = field(default=b"", repr=False)  # of the hash

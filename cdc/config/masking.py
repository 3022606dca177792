"""The masks of columns' values, as in section `masking` of the configuration and in the mappings of sinks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator

from cdc.config.section import Section
from cdc.model.events import TableId

HASH_KEY_CHARS_MIN: Final = 16  # a short key is found by trying


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one column."""

    table: TableId
    column: str
    action: Literal["truncate", "asterisks", "hash"]
    length: int = 0  # characters that are kept; asterisks that are written
    key: bytes = field(default=b"", repr=False)  # of the hash


class MaskOptions(Section):
    """The masks of some columns, by the columns' names."""

    truncate: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)  # characters that are kept
    # The number of asterisks in the text's place.
    asterisks: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(default_factory=dict)
    hash: tuple[str, ...] = ()  # HMAC with SHA-256, in hexadecimal: equal texts stay equal
    hash_key: SecretStr | None = None

    @model_validator(mode="after")
    def _can_be_applied(self) -> Self:
        if self.hash and (self.hash_key is None or len(self.hash_key.get_secret_value()) < HASH_KEY_CHARS_MIN):
            raise ValueError(f"hash requires hash_key, with at least {HASH_KEY_CHARS_MIN} characters")
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("a column is masked twice")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.truncate, *self.asterisks, *self.hash)

    def masks_of(self, column_of: Callable[[str], tuple[TableId, str]]) -> tuple[Mask, ...]:
        """Returns the masks. `column_of`: the table and the column of a name. Raises what it raises."""
        key = self.hash_key.get_secret_value().encode() if self.hash_key else b""
        return (
            *(Mask(*column_of(name), "truncate", length) for name, length in self.truncate.items()),
            *(Mask(*column_of(name), "asterisks", length) for name, length in self.asterisks.items()),
            *(Mask(*column_of(name), "hash", key=key) for name in self.hash),
        )

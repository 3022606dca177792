"""Section `verify`: comparisons of stores with the source that `cdc sink run` starts by itself."""

import re
from typing import Annotated, Final

from pydantic import Field, field_validator

from cdc.config.section import Section

_DURATION: Final = re.compile(r"(\d{1,6})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class VerifyConfig(Section):
    """Comparisons of stores with the source that `cdc sink run` starts by itself."""

    every: str | None = None  # from the beginning of one to that of the next: 30m, 6h, 1d; null: none
    tables: tuple[str, ...] = ("*",)  # patterns over schema.table
    sample: Annotated[int, Field(ge=1)] | None = None  # so many rows of each side instead of all
    source_share: Annotated[float, Field(ge=0.01, le=1.0)] = 0.1  # of the time that is spent reading the source

    @field_validator("every")
    @classmethod
    def _every(cls, value: str | None) -> str | None:
        if value is not None and (_DURATION.fullmatch(value) is None or not _duration_s(value)):
            raise ValueError("a number and a unit: 90s, 30m, 6h or 1d")
        return value

    @property
    def every_s(self) -> float | None:
        return None if self.every is None else _duration_s(self.every)


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text)
    assert found is not None, "the text was checked"
    return float(int(found[1]) * _UNIT_S[found[2]])

"""Findings of a look at the surroundings: what is well, what somebody should know, what has to be mended first."""

from dataclasses import dataclass
from typing import Literal, Self

from cdc.model.errors import WatershedError


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about one part; `next` is the statement or command that mends it."""

    about: str  # source, table public.orders, brokers, topic shop.state, store search, Java, …
    level: Literal["ok", "warn", "fail"]
    message: str
    next: str = ""

    @classmethod
    def failed(cls, about: str, error: WatershedError) -> Self:
        return cls(about, "fail", error.message, error.hint)

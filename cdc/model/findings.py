"""Findings of `cdc check`: facts that are in order, warnings, and failures that must be corrected first."""

from dataclasses import dataclass
from typing import Literal, Self

from cdc.model.errors import UnreachableError, WatershedError


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about one component; `next` is the statement or command that corrects it."""

    about: str  # source, table public.orders, brokers, topic shop.state, store search, Java, …
    level: Literal["ok", "warn", "fail"]
    message: str
    next: str = ""
    is_passing: bool = False  # a failure that may end by itself: a server does not answer

    @classmethod
    def failed(cls, about: str, error: WatershedError) -> Self:
        return cls(about, "fail", error.message, error.hint, isinstance(error, UnreachableError))

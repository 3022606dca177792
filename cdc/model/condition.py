"""The conditions that processes report. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a process knows about its own part of the pipeline and that is published nowhere."""

    part: Literal["capture", "sink", "view"]
    name: str  # the sink's or the view's; empty for capture
    state: str  # starting, standby, streaming, retrying, gap, stopped
    message: str = ""
    next: str = ""
    is_failure: bool = False

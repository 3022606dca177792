"""Section `clock`: the minutes that have passed, as a table that views read. Pure."""

from typing import Annotated, Final

from pydantic import Field

from cdc.config.section import Section
from cdc.model.events import TableId

MINUTES: Final = TableId("clock", "minutes")  # the name under which views read the table


class ClockConfig(Section):
    """The table `clock.minutes`, which `cdc view run` keeps in each base with a view that reads it."""

    days: Annotated[int, Field(ge=1, le=366)] = 7  # back to which it has a row for each minute; older ones are deleted

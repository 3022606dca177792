"""What a sink builds again because its configuration has changed, said before it is done. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.config.stores import StoreConfig
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from sinks.shaping.table import TableShape
from spark_jobs.generations import changed_functions, former_mappings, reshaped_tables
from spark_jobs.starting import INCLUDED, RESHAPED, included_again

UP_TO_DATE: Final = "until it is complete, readers see the former rows, which are kept up to date"
NOT_WRITTEN: Final = "until it is complete, readers see the former rows, and nothing is written to the store"
UNUSABLE: Final = (
    ", because the former mapping can't be used any more: it has other masks, other functions, does not "
    "fit, or is not known"
)
IN_PLACE: Final = "each row is written again where it is: until all are, readers see rows of both mappings"
REPLACED: Final = "the former rows are deleted first: until all are written again, readers miss rows"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The tables of one sink that are built again."""

    sink: str
    tables: tuple[TableId, ...]
    reason: str
    readers: str  # what they see meanwhile
    kept: int  # how many other tables stay as they are
    needs_space: bool  # the new rows are beside the former ones for a while
    functions: tuple[str, ...] = ()  # of which the rows were written with another version than is installed here

    @property
    def start_again(self) -> str:
        """Returns why a running sink does not do this after a reload; "" if it does."""
        if not self.functions:
            return ""
        names = " and ".join(self.functions)
        return (
            f"another version of function {names} is installed: a running sink keeps the one that it has imported, "
            "whatever it reloads, and builds when its process is started again"
        )

    def __str__(self) -> str:
        kept = f"; {self.kept} other tables stay as they are" if self.kept else ""
        again = f"; {self.start_again}" if self.functions else ""
        return f"builds {', '.join(map(str, self.tables))} again ({self.reason}): {self.readers}{kept}{again}"


def build_plan(
    sink: str,
    section: StoreConfig,
    schema_histories: Iterable[SchemaHistory],
    last: SinkRecord | None,
    known: Mapping[str, str],
) -> BuildPlan | None:
    """Returns what the sink will do with this configuration; None if it builds nothing. `last`: the newest record of
    the sink; `known`: see MappingsRecord. Shapes are not compared: stores know with which they were made."""
    held = [history for history in schema_histories if section.holds(history.newest.table)]
    if last is None:
        return None
    reshaped, included = reshaped_tables(section, held, last), included_again(last, section.holds)
    tables, reason = (reshaped, RESHAPED) if not included else (sorted({*reshaped, *included}), INCLUDED)
    if not tables:
        return None
    needs_space = section.no_rebuild is None and section.type != "cache"
    if section.no_rebuild is not None:
        readers = REPLACED if reshaped else "readers miss their rows until all are written"
    elif section.type == "cache":
        readers = IN_PLACE
    elif included:
        tables, readers = sorted(history.newest.table for history in held), NOT_WRITTEN
    else:
        former = former_mappings(section, reshaped, last, known)
        is_fed = bool(former) and fits(sink, section.with_mappings(former), held)
        readers = UP_TO_DATE if is_fed else f"{NOT_WRITTEN}{UNUSABLE}"
        tables = sorted(history.newest.table for history in held) if section.is_transactional else tables
    functions = tuple(sorted(changed_functions(section, reshaped, last, known)))
    return BuildPlan(sink, tuple(tables), reason, readers, len(held) - len(tables), needs_space, functions)


def fits(sink: str, section: StoreConfig, schema_histories: Iterable[SchemaHistory]) -> bool:
    """Says whether the section's mappings fit the tables as they are now."""
    try:
        for history in schema_histories:
            TableShape(sink, section, history)
    except RefusedError:
        return False
    return True

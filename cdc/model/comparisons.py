"""The history of a store's comparisons with the source, in the progress topic under `verify/<sink>`. Pure."""

from typing import Final

from pydantic import Field

from cdc.model.control import U64, Record
from cdc.model.job_records import PerSinkRecord

RUNS_MAX: Final = 10  # that a record keeps


class RunRecord(Record):
    """One comparison of a store, by `cdc verify` or `cdc repair`."""

    begun_us: U64  # µs since 1970
    seconds: float
    applied_lsn: U64 = 0  # what the store had applied when it ended
    is_scheduled: bool = False
    is_repair: bool = False
    is_sample: bool = False
    tables: int = 0  # that were compared whole
    rows: int = 0  # of the source
    drift: dict[str, int] = Field(default_factory=dict)  # kind of difference → rows
    undecided: int = 0
    repaired: int = 0
    not_compared: dict[str, str] = Field(default_factory=dict)  # table → why


class ComparisonRecord(PerSinkRecord):
    """The results of comparisons of one store with the source."""

    KEY = "verify/"
    runs: tuple[RunRecord, ...] = ()  # the newest first
    # Table → rows that differed when it was compared last, and were not repaired.
    drift: dict[str, int] = Field(default_factory=dict)

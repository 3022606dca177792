"""A process that applies a history to a store, batch by batch, and says after each how many it has applied.

usage: sink_writer NAME URL PREFIX SEED
"""

import sys
from collections.abc import Iterator
from random import Random

from pydantic import SecretStr

from cdc.config.stores import CacheConfig, SearchConfig
from cdc.model.events import pack_version
from sinks.contract import Change
from sinks.reduction import reduce_changes
from sinks.registry import make_sink
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.conformance.trial import History

BATCH_CHANGES = 40


def batches(seed: int) -> Iterator[list[Change]]:
    """The same in every process: each version once, in order."""
    history = History(Random(seed), [CUSTOMERS, ORDER_LINES], first_id=0, first_version=pack_version(1, 0))
    while True:
        yield history.changes(BATCH_CHANGES)


def main(name: str, url: str, prefix: str, seed: str) -> None:
    section = {"search": SearchConfig, "cache": CacheConfig}[name](url=SecretStr(url))
    sink = make_sink(name, section, prefix)
    for table in (CUSTOMERS, ORDER_LINES):
        sink.prepare(table.schema)
    for count, batch in enumerate(batches(int(seed)), start=1):
        sink.apply(reduce_changes(batch))
        print(count, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Whether a `read_committed` reader ever sees half of a transaction that fits the limits of a Kafka transaction."""

import re
from collections import Counter
from collections.abc import Sequence

from cdc.capture.kafka_transaction import END_S_MAX
from cdc.config.settings import CaptureConfig
from cdc.model.topic_record import TopicRecord
from tests.checker.history import expected_of
from tests.simulation.postgres import FakePostgres

_XID = re.compile(rb'"txId":(\d+)')
_METADATA_XID = re.compile(rb'{"status":"[A-Z]+","id":"(\d+):')


class Halves:
    """Asked at each commit of a Kafka transaction. Raises AssertionError."""

    def __init__(self, postgres: FakePostgres, limits: CaptureConfig) -> None:
        self._postgres = postgres
        self._limits = limits
        self._seen: Counter[int] = Counter()  # transaction → row records that readers see

    def check(self, records: Sequence[TopicRecord], open_s: float) -> None:
        """`records` are seen from now on; their Kafka transaction was open for so long."""
        rows: Counter[int] = Counter()
        counts: Counter[int] = Counter()  # with tombstones, which follow what they belong to
        sizes: Counter[int] = Counter()
        xid = 0
        for record in records:
            if record.value is not None:
                row, metadata = _XID.search(record.value), _METADATA_XID.match(record.value)
                found = row or metadata
                xid = int(found[1]) if found else 0
                rows[xid] += row is not None
            counts[xid] += 1
            sizes[xid] += len(record.key) + len(record.value or b"")
        del rows[0]  # of a load
        for xid, count in (+rows).items():
            begins = not self._seen[xid]
            self._seen[xid] += count
            fits = counts[xid] < self._limits.transaction_rows_max and sizes[xid] < self._limits.transaction_bytes_max
            if begins and fits and open_s < END_S_MAX:
                whole = sum(len(expected_of(entry)) for entry in self._postgres.journal() if entry.xid == xid)
                assert count == whole, f"readers see {count} of {whole} records of transaction {xid}"

"""Transaction metadata, as Debezium's `provide.transaction.metadata`: each event's place in its transaction, and
records for the begin and end of transactions.

    {"id":"571:53195832"}
    {"status":"BEGIN","id":"571:53195832","event_count":null,"data_collections":null,"ts_ms":1486500577125}
    {"status":"END","id":"571:53195832","event_count":2,"data_collections":[{"data_collection":"s1.a","event_count":1},
     {"data_collection":"s2.a","event_count":1}],"ts_ms":1486500577125}

The id is the transaction's xid and the LSN of its commit record, in BEGIN, END and every event. (Debezium's second part
is the LSN of each operation, so only the xid, which is reused, connects the events of a transaction.) A transaction
without events has no records.
"""

from cdc.formats import connect
from cdc.model.control import PartialTransaction
from cdc.pgoutput.messages import Begin

MESSAGES = "LOGICAL_DECODING_MESSAGE"
"""The collection under which messages are counted; other events count under `schema.table`."""


class TransactionMetadata:
    """Makes the metadata of one transaction after another: call `start`, then `opening`, `block` for each event, and
    `closing`."""

    def __init__(self, *, schemas_enable: bool, is_enabled: bool = True) -> None:
        """`is_enabled`: unless it is true, no metadata is made."""
        self.is_enabled = is_enabled
        self._converter = connect.Converter(
            connect.TRANSACTION_KEY, connect.TRANSACTION_VALUE, schemas_enable=schemas_enable
        )
        self._id = ""
        self._ts_ms = 0
        self.total = 0  # events of the transaction
        self._counts: dict[str, int] | None = None
        self._is_silent = False

    @property
    def counts(self) -> dict[str, int] | None:
        """Returns the number of events so far of each collection; None before the transaction's BEGIN."""
        return None if self._counts is None else dict(self._counts)

    def start(self, begin: Begin, partial: PartialTransaction | None) -> None:
        """A transaction begins to be received. `partial`: the part of it that is published; if that is without
        metadata, so is the rest."""
        self._id, self._ts_ms = f"{begin.xid}:{begin.final_lsn}", begin.commit_ts_us // 1000
        counts = partial.events if partial is not None and self.is_enabled else None
        self._counts = None if counts is None else dict(counts)
        self.total = sum((counts or {}).values())
        self._is_silent = not self.is_enabled or (partial is not None and counts is None)

    def opening(self) -> list[tuple[bytes, bytes]]:
        """Key and value of BEGIN, which goes before the transaction's first event; nothing if it is published."""
        if self._counts is not None or self._is_silent:
            return []
        self._counts = {}
        return [self._record("BEGIN", "null", "null")]

    def block(self, collection: str) -> str:
        """Counts an event and returns its metadata."""
        if self._counts is None:
            return "null"
        self.total += 1
        order = self._counts[collection] = self._counts.get(collection, 0) + 1
        return f'{{"id":"{self._id}","total_order":{self.total},"data_collection_order":{order}}}'

    def withdraw(self, collection: str, total: int) -> None:
        """Removes the events that were counted since `total`, all of this collection."""
        if self._counts is not None and self.total > total:
            self._counts[collection] -= self.total - total
            self.total = total
            if not self._counts[collection]:
                del self._counts[collection]

    def closing(self) -> list[tuple[bytes, bytes]]:
        """Returns key and value of END, which follows the last event; nothing if there was none."""
        if self._counts is None:
            return []
        collections = ",".join(
            f'{{"data_collection":{connect.dumps(name)},"event_count":{count}}}' for name, count in self._counts.items()
        )
        return [self._record("END", str(self.total), f"[{collections}]")]

    def _record(self, status: str, count: str, collections: str) -> tuple[bytes, bytes]:
        return self._converter.record(
            f'{{"id":"{self._id}"}}',
            f'{{"status":"{status}","id":"{self._id}","event_count":{count},'
            f'"data_collections":{collections},"ts_ms":{self._ts_ms}}}',
        )

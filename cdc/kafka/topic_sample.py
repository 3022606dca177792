"""A random sample of the rows of a topic: their keys, and digests of their last records.

The topic is read once, from its beginning to its end at that time. Of all keys, those with the smallest hashes are
kept: so each key is as likely as any other, its last record is the one that counts, and memory is bounded.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.formats.records import is_delete
from cdc.formats.row_digests import RowDigests
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.topic_keys import QUEUE_KIBIBYTES_MAX, version_of
from cdc.kafka.topic_reader import open_reader

KEYS_MAX: Final = 2_000


def read_sample(kafka: KafkaConfig, topic: str, digests: RowDigests, floor: int) -> dict[bytes, int]:
    """Returns record key → digest of some of the topic's rows, both of their JSON. `floor`: rows with a lower version
    were swept. Raises BrokerError, UnreachableError, and what RecordReader.plain raises."""
    plain = record_reader(kafka).plain
    with open_reader(kafka, settings={"queued.max.messages.kbytes": QUEUE_KIBIBYTES_MAX}) as reader:
        messages = (m for partition in reader.partitions(topic) for m in reader.read(topic, partition))
        records = ((key, plain(m.value())) for m in messages if (key := plain(m.key())) is not None)
        return sample(records, digests, floor)


def sample(
    records: Iterable[tuple[bytes, bytes | None]], digests: RowDigests, floor: int = 0, keys_max: int = KEYS_MAX
) -> dict[bytes, int]:
    """Returns what `read_sample` does, of these records in the order of the topic."""
    kept: dict[bytes, int | None] = {}
    largest: list[tuple[int, bytes]] = []  # a heap of the kept keys, by their negative hashes
    for key, value in records:
        if key not in kept:
            entry = -hash(key), key
            if len(largest) < keys_max:
                heapq.heappush(largest, entry)
            elif entry > largest[0]:
                del kept[heapq.heapreplace(largest, entry)[1]]
            else:
                continue
        is_gone = value is None or is_delete(value) or version_of(value) < floor
        kept[key] = None if is_gone or value is None else digests.of_value(value)
    return {key: digest for key, digest in kept.items() if digest is not None}

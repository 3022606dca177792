"""What the brokers note of a transactional id. Values of version 1 are those of Kafka 4.3.1, byte for byte."""

import struct

import pytest

from cdc.kafka.transaction_log import PREPARE_ABORT, PREPARE_COMMIT, decode_entry, partition_of

COMMITTED = bytes.fromhex(
    "0001000000000000000000000000ea6002030d74325f305f362e73746174650200000000000774325f305f36050000000100000000000000030"
    "000000200000001a20374d9b9000001a20374d9a90100080000000000000000"
)
ENTRY = PREPARE_COMMIT, frozenset({("t2_0_6.state", 0), *(("t2_0_6", number) for number in range(4))})


def old_value(state: int, topics: dict[str, list[int]] | None) -> bytes:
    """Version 0, which is not flexible."""
    value = struct.pack(">hqhib", 0, 7, 3, 60_000, state)
    value += struct.pack(">i", -1 if topics is None else len(topics))
    for name, partitions in (topics or {}).items():
        value += struct.pack(">h", len(name)) + name.encode()
        value += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return value + struct.pack(">qq", 1, 2)


def test_both_versions_are_read() -> None:
    assert decode_entry(COMMITTED) == ENTRY
    places = frozenset({("a", 0), ("a", 70_000), ("b.é", 1)})
    assert decode_entry(
        struct.pack(">hqhib", 0, 7, 3, 60_000, 3)
        + b"\0\0\0\x02\0\x01a\0\0\0\x02\0\0\0\0\0\x01\x11\x70"
        + b"\0\x04b.\xc3\xa9\0\0\0\x01\0\0\0\x01"
        + bytes(16)
    ) == (PREPARE_ABORT, places)
    assert decode_entry(old_value(4, {})) == (4, frozenset())
    assert decode_entry(old_value(0, None)) == (0, frozenset())


def test_tagged_fields_of_a_topic_are_passed_over() -> None:
    """Flexible versions may get more of them."""
    head = struct.pack(">hqhib", 1, 7, 3, 60_000, 2)
    value = head + b"\x02" + b"\x02a" + b"\x02\0\0\0\x05" + b"\x01\x09\x03xyz" + bytes(17)
    assert decode_entry(value) == (PREPARE_COMMIT, frozenset({("a", 5)}))


def test_what_ends_in_the_middle_or_is_something_else_is_refused() -> None:
    needed = len(COMMITTED) - 27  # what follows the topics is not looked at
    for size in range(needed):
        with pytest.raises(ValueError):
            decode_entry(COMMITTED[:size])
    assert decode_entry(COMMITTED[:needed]) == ENTRY
    with pytest.raises(ValueError, match="the unknown version 2"):
        decode_entry(b"\0\x02" + COMMITTED[2:])


def test_an_id_is_where_javas_hash_says() -> None:
    assert partition_of("abc", 50) == 96_354 % 50
    assert partition_of("watershed-m402_4_89db08", 6) == 0  # a negative one; seen in a cluster
    assert partition_of("polygenelubricants", 50) == 0  # Integer.MIN_VALUE, which has no absolute value
    assert partition_of("\U0001d11e", 1000) == (0xD834 * 31 + 0xDD1E) % 1000

"""Tags of a position: what they are set on, and when not."""

import json
from collections.abc import Iterator

import pytest

from cdc.model.control import ProgressRecord
from sinks.warehouse import properties
from sinks.warehouse.engine import Snapshot
from sinks.warehouse.tags import TagPosition, Tags, tag_name, tag_position
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

A, B = ("shop", "public", "a"), ("shop", "public", "b")
TOPICS: dict[tuple[str, ...], str] = {A: "shop.public.a", B: "shop.public.b"}


class Engine(ScriptedEngine):
    """Of each table the snapshots, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, ...], list[Snapshot]] = {A: [], B: []}

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        return iter(self.held[table])

    def merged(self, table: tuple[str, ...], number: int, *ends: int, **summary: str) -> None:
        offsets = {str(partition): [0, end] for partition, end in enumerate(ends)}
        about = {properties.TOPIC: TOPICS[table], properties.OFFSETS: json.dumps(offsets), **summary}
        self.held[table].insert(0, Snapshot(number, None, about))


def cut(lsn: int, a: tuple[int, ...] = (5, 5), b: tuple[int, ...] = (5,), epoch: int = 1) -> ProgressRecord:
    return ProgressRecord(
        epoch=epoch,
        seq=0,
        lsn=lsn,
        commit_ts_us=0,
        published_ts_us=0,
        end_offsets={TOPICS[A]: a, TOPICS[B]: b},
        incarnations={TOPICS[A]: "a", TOPICS[B]: "b"},
        is_cut=True,
    )


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_names_are_in_the_order_of_positions() -> None:
    places = [TagPosition(1, 9), TagPosition(1, 0x1_0000_0000), TagPosition(1, 2**64 - 1)]
    names = [tag_name(place) for place in places]
    assert names == sorted(names)
    assert names[0] == "ws-1-0000000000000009"
    assert [tag_position(name) for name in names] == places
    assert [tag_position(name) for name in ("release", "ws-1", "ws-1-9", "ws-x-0000000000000009")] == [None] * 4


def test_all_tables_are_tagged_at_their_newest_snapshots(engine: Engine) -> None:
    engine.merged(A, 1, 2, 2)
    engine.merged(A, 2, 5, 3)
    engine.held[A].insert(0, Snapshot(3, 2, {}))  # a compaction
    assert Tags(engine, 3).set(cut(0x100), TOPICS)
    name = tag_name(TagPosition(1, 0x100))
    assert engine.tagged == {A: {name: 3}, B: {name: -1}}, "a table without a snapshot gets one"


def test_no_table_is_tagged_if_one_has_something_beyond_the_position(engine: Engine) -> None:
    """A job that went on while another began may have written it, also under a later snapshot."""
    engine.merged(A, 1, 5, 5)
    engine.merged(B, 2, 6)
    engine.merged(B, 3, 5)
    assert not Tags(engine, 3).set(cut(0x100), TOPICS)
    assert engine.tagged == {}
    assert Tags(engine, 3).set(cut(0x200, b=(6,)), TOPICS)


def test_offsets_of_a_former_topic_are_not_compared(engine: Engine) -> None:
    engine.merged(A, 1, 900, 900, **{properties.INCARNATION: "former"})
    engine.held[B].append(Snapshot(2, None, {properties.TOPIC: "other", properties.OFFSETS: '{"0": [0, 900]}'}))
    assert Tags(engine, 3).set(cut(0x100), TOPICS)
    engine.merged(A, 3, 900, 900)  # of a job that does not say which topic it was
    assert not Tags(engine, 3).set(cut(0x200), TOPICS)


def test_what_an_earlier_tag_has_is_not_looked_at_again(engine: Engine) -> None:
    engine.merged(A, 1, 900, 900)
    engine.tagged[A] = {tag_name(TagPosition(1, 0x50)): 1, "release": 7}
    assert Tags(engine, 3).set(cut(0x100), TOPICS)
    assert not Tags(engine, 3).set(cut(0x60), TOPICS), "the table is beyond that already"


def test_the_newest_tags_are_kept_and_those_of_others_too(engine: Engine) -> None:
    engine.tagged[A] = {"release": 1}
    tags = Tags(engine, 2)
    for lsn in (0x100, 0x200, 0x300, 0x300):
        assert tags.set(cut(lsn), TOPICS)
    kept = [tag_name(TagPosition(1, lsn)) for lsn in (0x200, 0x300)]
    assert [sorted(engine.tagged[table]) for table in (A, B)] == [["release", *kept], kept]


def test_a_commit_of_another_writer_is_no_error(engine: Engine) -> None:
    engine.conflicts = 1
    assert not Tags(engine, 2).set(cut(0x100), TOPICS)
    assert Tags(engine, 2).set(cut(0x200), TOPICS)

"""What the judge of tables (tests/checker) does not look at: events, dead letters, and values in topics of others."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.checker.records import Record, parse
from tests.mixed.operations import owners

Complaints = Iterator[str]


@dataclass(frozen=True, slots=True)
class Written:
    """An event that was committed. Those of an aggregate stand in the order of their commits."""

    id: str
    topic: str  # where it belongs, its dead letters' topic among them
    aggregate: str
    payload: bytes | None
    is_dead: bool


def foreign_values(records: Iterable[Record], owners_of: Mapping[str, Collection[str]]) -> Complaints:
    """`owners_of`: topic → whose values may be there; in other topics nobody's may be."""
    for record in records:
        strange = (owners(record.key) | owners(record.value)) - set(owners_of.get(record.topic, ()))
        if strange:
            yield f"LEAK: {record} (id {_id(record)}) holds a value of {', '.join(sorted(strange))}"


def events_are_the_ledger(ledger: Sequence[Written], records: Sequence[Record], topics: Collection[str]) -> Complaints:
    """Each event of the ledger once, in its topic, with its bytes and in the order of its aggregate; `topics` hold
    nothing else. `records`: each partition's in order."""
    written = {event.id: event for event in ledger}
    place = {event.id: number for number, event in enumerate(ledger)}
    seen: Counter[str] = Counter()
    last: dict[tuple[str, bytes], int] = defaultdict(lambda: -1)
    for record in records:
        if record.topic not in topics:
            continue
        identity = _id(record)
        event = written.get(identity)
        if event is None:
            yield f"{record}: a record of no event that was committed, id {identity!r}"
            continue
        seen[identity] += 1
        if event.topic != record.topic:
            yield f"{record}: event {identity} belongs into {event.topic}"
            continue
        if event.is_dead:
            yield from _not_the_letter(record, event)
            continue
        if (record.key.decode(), record.value) != (event.aggregate, event.payload):
            message = record.value if record.value is None else record.value[:200]
            yield f"{record}: event {identity} of {record.key!r} is {message!r}, written was {event.payload!r}"
        if place[identity] <= last[record.topic, record.key]:
            yield f"{record}: event {identity} stands behind a later one of {record.key!r}"
        last[record.topic, record.key] = place[identity]
    for identity in written:
        if seen[identity] != 1:
            yield f"event {identity} of {written[identity].topic} is there {seen[identity]} times"


def _not_the_letter(record: Record, event: Written) -> Complaints:
    message = parse(record.value or b"{}").get("event") or {}
    if message.get("aggregateid") != event.aggregate:
        yield f"{record}: the dead letter of event {event.id} says {message}"


def _id(record: Record) -> str:
    """Of an event, or of its dead letter."""
    found = dict(record.headers).get("id", record.key)
    return found.decode(errors="replace")

"""A hundred thousand random operations on each real server, in big batches, with columns renamed, a condition and
lookup keys: shuffled, duplicated, replayed, split in other ways, from a job, its zombie and a restarted one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import pytest
from msgspec import structs

from cdc.config.store_mapping import StoredTables
from cdc.model.events import pack_version
from sinks.contract import Change
from sinks.reduction import reduce_changes
from sinks.shaping.sink import shaped
from tests.conformance.model import Model, assert_rows
from tests.conformance.stores import STORES, CacheStore
from tests.conformance.tables import ORDER_LINES, Table
from tests.conformance.trial import Trial

OPERATIONS: Final = 100_000  # changes that the sink applies, after each batch was reduced
KEYS: Final = 20_000
WINDOW: Final = 6_000  # changes that are shuffled together
MAPPING: Final = StoredTables.model_validate(
    {
        "mapping": {
            "public.order_lines": {
                "rename": {"order_id": "order", "remark": "note"},
                "constants": {"origin": "shop"},
                "where": "quantity >= 0 OR remark IS NULL",
            }
        }
    }
)
STORED: Final = Table(
    replace(ORDER_LINES.schema, key=("order", "line_no")),
    {"order": "int8", "line_no": "int4", "quantity": "int4", "note": "varchar", "origin": "text"},
)


def mapped(change: Change) -> Change | None:
    """The mapping by hand; None where the condition needs a column that the change lacks."""
    key = {"order": change.key["order_id"], "line_no": change.key["line_no"]}
    row = change.row
    if row is None:
        return structs.replace(change, key=key)
    is_held = row["quantity"] is not None and row["quantity"] >= 0
    if not is_held:
        if "remark" not in row:
            return None
        is_held = row["remark"] is None
    names = {"order_id": "order", "remark": "note"}
    stored = {names.get(name, name): value for name, value in row.items()} | {"origin": "shop"}
    unchanged = frozenset(names.get(name, name) for name in change.unchanged)
    return structs.replace(
        change, key=key, row=stored if is_held else None, unchanged=unchanged if is_held else frozenset()
    )


def history(random: Random, count: int) -> Iterator[Change]:
    """In the order of versions. A remark is a row's own, so that lookup keys by it are unique."""
    version = pack_version(1, 0)
    for number in range(count):
        version += 1
        chosen = random.randrange(KEYS)
        key = {"order_id": chosen // 4, "line_no": chosen % 4}
        kind = random.random()
        quantity = random.choice((None, -1, 0, 7))
        if kind < 0.2:
            yield (ORDER_LINES.delete if kind < 0.1 else ORDER_LINES.tombstone)(version, **key)
        elif kind < 0.25:
            yield ORDER_LINES.update(version, ["remark"], **key, quantity=quantity)
        else:
            remark = random.choice((None, f"{chosen} {number % 5}", f"{chosen} ünï {number}"))
            yield ORDER_LINES.upsert(version, **key, quantity=quantity, remark=remark)


def delivered(random: Random, changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Batches without end: windows that are shuffled, with what came before among them. Some come again, split."""
    while True:
        for start in range(0, len(changes), WINDOW):
            window = [*changes[start : start + WINDOW], *random.sample(changes[: start + 1], min(start + 1, 2_000))]
            random.shuffle(window)
            while window:
                size = random.choice((1, 300, 2_000, 4_000))
                batch, window = window[:size], window[size:]
                yield batch
                if random.random() < 0.1:
                    middle = random.randrange(len(batch) + 1)
                    yield from (batch[middle:], batch[:middle])


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    "store_name",
    [
        "search-shaped",
        "cache-lookups",
        pytest.param("cache-cluster", marks=pytest.mark.long),
        "sql-shaped",
        # Each batch is up to four commits, of a second each.
        pytest.param("warehouse", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_a_hundred_thousand_operations_end_equal(store_name: str, request: pytest.FixtureRequest, unique: str) -> None:
    random = Random(17)
    changes = list(history(random, OPERATIONS * 2 // 3))
    with STORES[store_name](request, unique) as store:
        trial, model = Trial(store), Model()
        store.rename(MAPPING.mapping["public.order_lines"].rename)
        try:
            sinks = [shaped(trial.another(), MAPPING) for _ in range(2)]
            for sink in sinks:
                sink.prepare(ORDER_LINES.schema)
            applied = 0
            batches = delivered(random, changes)
            while applied < OPERATIONS:
                batch = reduce_changes(next(batches))
                results = random.choice(sinks).apply(batch)
                applied += len(batch)
                for change, result in zip(batch, results, strict=True):
                    message = mapped(change)
                    if message is not None:
                        outcome = model.apply(message)
                        assert result.outcome is outcome or not store.tells_stale
                if random.random() < 0.02:
                    sinks.append(shaped(trial.another(), MAPPING))
                    sinks.pop(0)
                    sinks[-1].prepare(ORDER_LINES.schema)
            floor = pack_version(1, len(changes) // 3)
            assert sinks[0].sweep(ORDER_LINES.id, floor) == model.sweep(ORDER_LINES.id, floor)
            for batch in (changes[: len(changes) // 2], changes[len(changes) // 2 :]):
                sinks[-1].apply(reduce_changes(batch))
                model.apply_all(filter(None, map(mapped, reduce_changes(batch))))
            for sink in sinks:
                sink.make_readable({ORDER_LINES.id})
            assert_rows(STORED, list(sinks[0].rows(ORDER_LINES.id)), model, store.exact_json)
            held = model.rows(ORDER_LINES.id)
            assert len(held) > KEYS // 4
            if isinstance(store, CacheStore):
                owners = {row["note"]: name for name, (_, row) in held.items() if row["note"] is not None}
                assert store.lookups(ORDER_LINES.id) == owners
        finally:
            trial.close()

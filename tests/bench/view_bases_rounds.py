"""Measures rounds of changes of one base, and compares each document that it computes with the right one."""

import os
import time
from itertools import count
from typing import Any, Final, NamedTuple

import psutil  # type: ignore[import-untyped]

from tests.bench.snapshot import percentile
from tests.bench.view_bases_shop import KeyedBase, Shop

SHARES: Final = {"p50": 0.5, "p95": 0.95}
WARM_ROUNDS: Final = 3  # for each number of changes, not measured


class WrongDocumentError(AssertionError):
    """A base has computed a document that its tables do not make."""


class Measured(NamedTuple):
    """One round."""

    write_s: float
    compute_s: float
    cpu_s: float
    documents: int


def measure(base: KeyedBase, shop: Shop, counts: list[int], rounds: int) -> dict[str, Any]:
    """Returns the figures of one base, by the number of changes in a round. Raises WrongDocumentError."""
    begun = time.monotonic()
    base.fill(shop.fill())
    found: dict[str, Any] = {"filled_s": round(time.monotonic() - begun, 1)}
    found |= {name: round(value, 1) for name, value in base.sizes().items()}
    numbers = count()
    for changes in counts:
        for _ in range(WARM_ROUNDS):
            _round(base, shop, next(numbers), changes)
        measured = [_round(base, shop, next(numbers), changes) for _ in range(rounds)]
        times = sorted(one.write_s + one.compute_s for one in measured)
        documents = sum(one.documents for one in measured)
        found[f"changes_{changes}"] = {
            **{f"{name}_ms": round(percentile(times, share) * 1000, 1) for name, share in SHARES.items()},
            "write_p50_ms": round(percentile(sorted(one.write_s for one in measured), 0.5) * 1000, 1),
            "documents": round(documents / rounds, 1),
            "documents_per_s": round(documents / sum(times)),
            "cpu_ms": round(sum(one.cpu_s for one in measured) / rounds * 1000),
        }
    return found | {f"{name}_at_end": round(value, 1) for name, value in base.sizes().items()}


def _round(base: KeyedBase, shop: Shop, number: int, changes: int) -> Measured:
    """One round. Raises WrongDocumentError."""
    wanted = shop.round(number, changes)
    cpu_s, begun = _cpu_s(), time.monotonic()
    written = base.write(wanted.changes)
    write_s = time.monotonic() - begun
    computed = base.compute(written)
    compute_s = time.monotonic() - begun - write_s
    cpu_s = _cpu_s() - cpu_s
    documents = base.documents(computed)
    for customer in wanted.customers:
        if documents.get(customer) != shop.document(customer):
            raise WrongDocumentError(
                f"{type(base).__name__}, round {number}: customer {customer} is {documents.get(customer)} instead of "
                f"{shop.document(customer)}"
            )
    base.run_if_due()
    return Measured(write_s, compute_s, cpu_s, len(wanted.customers))


def _cpu_s() -> float:
    """The processor seconds of this process and of all that it has started, also of those that have ended."""
    own = psutil.Process(os.getpid())
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # user and system time, its own and that of its ended children
        except psutil.NoSuchProcess:
            continue
    return total

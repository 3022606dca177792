"""A base that a real SQL sink keeps, jobs of views over it, and the comparison of each view with its query."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import psycopg
from pydantic import SecretStr

from cdc.config.stores import SqlConfig
from cdc.config.views import ViewConfig
from cdc.model.events import pack_version
from sinks.contract import Change, Json, Sink
from sinks.slots import FIRST
from sinks.sql.sink import SqlSink
from sinks.sql.slots import SqlSlots
from tests.conformance.stores import url_of
from tests.conformance.tables import Table
from tests.support.view_tables import CUSTOMERS, LINES, PAYER, PAYMENTS, TICKS, Query, draw_key, draw_values
from watershed.views.base import Base
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import ViewMaintainer, define
from watershed.views.target import TargetGenerations

# One table has another name in the base than in the source.
BASE_SHAPES: Final = {str(LINES.id): {"table": "kept.lines", "indexes": [["order_id"]]}}


def base_config(dsn: str) -> SqlConfig:
    """The section of the sink that keeps the base."""
    return SqlConfig.model_validate({"url": SecretStr(url_of(dsn)), "shapes": BASE_SHAPES})


@contextmanager
def base_sink(config: SqlConfig, tables: Sequence[Table]) -> Iterator[SqlSink]:
    """The sink, with these tables prepared."""
    with closing(SqlSink.open(config, "shop")) as sink:
        sink.begin_generation(1)
        for one in tables:
            sink.prepare(one.schema)
        yield sink


class Workload:
    """Random changes of tables, applied to the base as its sink's job does: late, repeated and stale ones, too."""

    def __init__(self, sink: SqlSink, tables: Sequence[Table], seed: int) -> None:
        self._sink = sink
        self._tables = tables
        self._chance = random.Random(seed)
        self._version = pack_version(1, 1)
        self._last: list[Change] = []

    def step(self) -> None:
        changes = {}
        for _ in range(self._chance.randint(1, 12)):
            kind = self._chance.choice(self._tables)
            key = draw_key(self._chance, kind)
            self._version += 1
            is_delete = self._chance.random() < 0.3
            changes[kind.id, tuple(key.values())] = (
                kind.delete(self._version, **key)
                if is_delete
                else kind.upsert(self._version, **key, **draw_values(self._chance, kind))
            )
        if self._chance.random() < 0.1:
            self._sink.apply(self._last)  # again, after newer ones
        self._last = list(changes.values())
        self._sink.apply(self._last)

    def fill(self) -> None:
        """Leaves rows in every table, also after deletes and a TRUNCATE. Payments of one customer are a pattern of the
        recipes, which random ones rarely are."""
        for kind in self._tables:
            for _ in range(12):
                self._put(kind)
        if CUSTOMERS in self._tables:
            self._put(CUSTOMERS, id=PAYER)
        if PAYMENTS in self._tables:
            for number, status in enumerate(["failed", "failed", "failed", "paid"]):
                at = f"2026-01-01T10:{10 * number + self._chance.randrange(10):02}:00Z"
                self._put(PAYMENTS, id=PAYER + number, customer_id=PAYER, at=at, status=status)
            last = {"at": "2026-01-01T11:30:00Z", "due_at": "2026-01-01T12:31:00Z"}
            self._put(PAYMENTS, id=PAYER + 4, customer_id=PAYER, status="failed", **last)
            if TICKS in self._tables:
                self._put(TICKS, at=last["due_at"])

    def _put(self, kind: Table, **chosen: Json) -> None:
        """A row; `chosen`: values instead of random ones."""
        self._version += 1
        row = draw_key(self._chance, kind) | draw_values(self._chance, kind) | chosen
        self._sink.apply([kind.upsert(self._version, **row)])

    def truncate(self) -> None:
        self._version += 1
        self._sink.sweep(self._chance.choice(self._tables).id, self._version)


class Views:
    """Opens jobs of views on the base; their target is another schema of the same database."""

    def __init__(self, base: SqlConfig, dsn: str) -> None:
        self._base = base
        self.dsn = dsn
        self.waits = 0

    def config(self, query: Query, **options: Any) -> ViewConfig:
        target = {"type": "sql", "url": self._base.url.get_secret_value(), "own_schema": "of_views"}
        section = {"base": "base", "sql": query.text, "key": query.key, "target": target, **options}
        return ViewConfig.model_validate(section)

    def base(self) -> Base:
        return Base(self._base, "shop")

    def open(self, name: str, config: ViewConfig, base: Base) -> ViewMaintainer:
        assert isinstance(config.target, SqlConfig)
        section = config.target.model_copy(update={"own_schema": f"of_{name}"})

        def target(slot: str = FIRST) -> Sink:
            return SqlSink.open(section, "shop", slot=slot)

        def wait() -> None:
            self.waits += 1

        generations = TargetGenerations(partial(SqlSlots, section, "shop"), target)
        return ViewMaintainer(define(name, config, base), base, target, wait, generations=generations)

    @contextmanager
    def job(self, name: str, query: Query, **options: Any) -> Iterator[ViewMaintainer]:
        """A job that has started."""
        with self.base() as base, closing(self.open(name, self.config(query, **options), base)) as maintainer:
            maintainer.start()
            yield maintainer

    def is_filled(self, name: str) -> bool:
        """Returns whether a job has filled the view: the next one goes on from there."""
        with self.base() as base:
            base.install()
            state = base.state(name)
        return state is not None and state.state == "serving"

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True, options="-c timezone=UTC") as connection:
            connection.execute("SET search_path = public, kept")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def assert_equal(self, name: str, query: Query) -> int:
        """Returns the number of rows."""
        there = " AND ".join(f"v.{column} IS NOT NULL" for column in query.key)
        wanted = self.query(f"SELECT row_to_json(v)::text FROM ({query.text}\n) v WHERE {there} ORDER BY 1")
        assert self.query(f"SELECT row_to_json(v)::text FROM views.{name} v ORDER BY 1") == wanted, name
        return len(wanted)


def until_idle(maintainer: ViewMaintainer) -> None:
    while maintainer.step():
        pass


class KilledError(BaseException):
    """Ends a job as a kill does: no handler of errors sees it."""


@contextmanager
def killed_at(owner: type, name: str, *, is_before: bool, calls: int = 1) -> Iterator[None]:
    """Ends the block before or after this call of a method, counted from 1."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls == 0 and is_before:
            raise KilledError
        result = original(*arguments, **options)
        if calls == 0:
            raise KilledError
        return result

    with patch.object(owner, name, call), suppress(KilledError):
        yield


@contextmanager
def killed(chance: random.Random, moments: Sequence[tuple[type, str]], calls_max: int) -> Iterator[None]:
    """Ends the block at one of the moments, methods by class and name, before or after one of its first calls."""
    owner, name = chance.choice(moments)
    is_before, calls = chance.random() < 0.5, chance.randint(1, calls_max)
    with killed_at(owner, name, is_before=is_before, calls=calls):
        yield


# Where jobs end: while changes become keys, which is not committed yet; with keys noted; around a write of the target,
# of a filling, too; before and after keys are forgotten; around the beginning of a filling.
MOMENTS: Final = (
    (ViewDefinition, "touched"),
    (Base, "collect"),
    (ViewMaintainer, "_apply"),
    (Base, "written"),
    (Base, "install_triggers"),
)
CALLS_MAX: Final = 4


class Run(NamedTuple):
    """The counts of a random run: what its jobs did."""

    rows: int  # that were compared
    kills: int  # jobs that ended without warning
    fillings: int  # that were begun, as the view had no whole one


def random_run(name: str, query: Query, views: Views, workload: Workload, seed: int, jobs: int = 4) -> Run:
    """Jobs of one view, one after the other; most end without warning at some moment while the base changes. The view
    is its query's result whenever a job is idle."""
    chance, rows, kills, fillings, options = random.Random(seed), 0, 0, 0, {"keys_per_batch": 3}
    for _ in range(5):
        workload.step()
    for _ in range(jobs):
        fillings += not views.is_filled(name)
        kills += 1
        with killed(chance, MOMENTS, CALLS_MAX), views.job(name, query, **options) as maintainer:
            for _ in range(chance.randint(1, 6)):
                workload.step()
                if chance.random() < 0.1:
                    workload.truncate()
                if chance.random() < 0.7:
                    maintainer.step()
            until_idle(maintainer)
            rows += views.assert_equal(name, query)
            kills -= 1
    fillings += not views.is_filled(name)
    with views.job(name, query, **options) as maintainer:
        until_idle(maintainer)
        rows += views.assert_equal(name, query)
        workload.fill()
        until_idle(maintainer)
        rows += views.assert_equal(name, query)
    return Run(rows, kills, fillings)

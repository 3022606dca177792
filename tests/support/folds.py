"""Views that are folds, compared with a plain fold in Python of all events; and those of the documentation."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import yaml
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from cdc.config.stores import SqlConfig
from cdc.config.views import ViewConfig
from tests.support.view_tables import PAGE, Query
from tests.support.views import Views, until_idle
from watershed.views.maintainer import ViewMaintainer

_BLOCK: Final = re.compile(r"<!-- fold: ([\w.]+) -->\n```\w+\n(.*?)```", re.DOTALL)


def documented(folder: Path) -> dict[str, Any]:
    """Writes the module of the documentation's page into the folder, from which it can be imported. Returns the section
    `views` of the page."""
    blocks = dict(_BLOCK.findall(PAGE.read_text()))
    (folder / "accounts.py").write_text(blocks["accounts.py"])
    found: dict[str, Any] = yaml.safe_load(blocks["views"])["views"]
    return found


class FoldViews(Views):
    """Jobs of views with this fold."""

    def __init__(self, base: SqlConfig, dsn: str, function: Callable[..., Any], fold: dict[str, Any]) -> None:
        super().__init__(base, dsn)
        self.function = function
        self.fold = fold

    @classmethod
    def of_section(cls, base: SqlConfig, dsn: str, section: dict[str, Any]) -> Self:
        """Jobs of a view of the documentation."""
        module, function = section["fold"]["function"].split(":")
        return cls(base, dsn, getattr(import_module(module), function), section["fold"])

    def config(self, query: Query, **options: Any) -> ViewConfig:
        return super().config(query, **({"fold": self.fold} | options))

    def rows(self, name: str, query: Query) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The rows of the view."""
        return self._by_key(f"SELECT * FROM views.{name}", query)

    def folded(self, query: Query) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The rows that a plain fold of all events gives."""
        states: dict[tuple[Any, ...], Any] = {}
        for event in self._read(f"SELECT * FROM ({query.text}) v ORDER BY {', '.join(self.fold['order'])}"):
            key = tuple(event[name] for name in query.key)
            if None not in key:
                states[key] = self.function(states.get(key), event)
        return {
            key: dict(zip(query.key, key, strict=True)) | {name: state[name] for name in self.fold["columns"]}
            for key, state in states.items()
            if state is not None
        }

    def assert_equal(self, name: str, query: Query) -> int:
        wanted = self.folded(query)
        assert self.rows(name, query) == wanted, name
        return len(wanted)

    def _by_key(self, statement: str, query: Query) -> dict[tuple[Any, ...], dict[str, Any]]:
        names = [*query.key, *self.fold["columns"]]
        rows = self._read(statement)
        return {tuple(row[name] for name in query.key): {name: row[name] for name in names} for row in rows}

    def _read(self, statement: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            set_json_loads(partial(json.loads, parse_float=Decimal), connection)
            connection.execute("SET search_path = public, kept")
            return connection.execute(statement.encode()).fetchall()


EVENTS: Final = "SELECT e.account_id, e.no, e.kind, e.amount FROM account_events e"
COLUMNS: Final = {"count": "smallint", "total": "numeric", "nos": "jsonb"}
FOLD: Final = {"function": f"{__name__}:total", "order": ["no"], "columns": COLUMNS}
SEEN: Final[list[tuple[int, int]]] = []  # account and number of each event that the function was called with


def total(state: Any, event: Any) -> Any:
    """Depends on the order of the events and on that of a dict's names, and changes what it is called with."""
    SEEN.append((event["account_id"], event["no"]))
    if event["kind"] == "bad":
        raise ValueError("no such kind\nof event")
    if event["kind"] == "gone":
        return None
    state = state or {"count": 0, "total": Decimal("0.0"), "nos": [], "kinds": {}}
    state["count"] += 40_000 if event["kind"] == "many" else 1
    state["total"] = Decimal(state["total"]) / 2 + Decimal(event.pop("amount"))
    state["nos"] = [*state["nos"], event["no"], *list(state["kinds"])[:1]]
    state["kinds"] = {event["kind"]: event["no"]} | state["kinds"]
    return state


WHOLE: Final = (2, 4, 6, 8, 10, 12, 14)


def event(no: int, account: int = 1, amount: str = "1.0", kind: str = "paid") -> str:
    values = f"account {account}, {no}, '{kind}', {amount}"
    return f"INSERT INTO account_events (account_id, no, kind, amount) VALUES ({values})"


class Case:
    """A view of two accounts that are its own, 1 and 2, and a third one without events."""

    numbers = count(1)

    def __init__(self, views: FoldViews) -> None:
        self.number = next(self.numbers)
        self.view = f"totals_{self.number}"
        self.views = views
        views.fold, views.waits = FOLD, 0
        self.text = f"{EVENTS} WHERE e.account_id / 10 = {self.number}"
        self.do(*(event(no, account, f"{no}.5") for account in (1, 2) for no in WHOLE))

    @property
    def query(self) -> Query:
        return Query(self.text, ["account_id"])

    def do(self, *statements: str) -> None:
        self.views.query("; ".join(re.sub(r"account (\d)", rf"{self.number}\1", one) for one in statements))

    @contextmanager
    def job(self) -> Iterator[ViewMaintainer]:
        with self.views.job(self.view, self.query) as maintainer:
            yield maintainer

    def assert_equal(self) -> int:
        return self.views.assert_equal(self.view, self.query)

    def rows(self) -> dict[int, dict[str, Any]]:
        return {key % 10: row for (key,), row in self.views.rows(self.view, self.query).items()}

    def rejected(self) -> dict[str, str]:
        found = self.views.query("SELECT view, key, reason FROM watershed_views_shop.rejected")
        return {key[0][-1]: reason for view, key, reason in found if view == self.view}

    def read_by(self, do: Callable[[], Any]) -> list[int]:
        """The numbers of the events that the function was called with meanwhile. The view is a plain fold then."""
        SEEN.clear()
        do()
        seen = [no for _, no in SEEN]
        self.assert_equal()
        return seen

    def read_until_idle(self, maintainer: ViewMaintainer) -> list[int]:
        return self.read_by(lambda: until_idle(maintainer))

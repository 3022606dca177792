"""Keeps `clock.minutes` in a base: one row for each whole minute that has passed, by the clock of the base's server.

Views have no clock, as their rows would change without a change of a row. With this table time is one: a row that is
joined with the minute of its deadline appears in its view when the minute is inserted.
"""

from contextlib import suppress
from functools import partial
from typing import Final, LiteralString

from psycopg import sql

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig, sink_config
from cdc.config.views import MINUTES
from cdc.model.errors import ConfigError
from watershed.views.connection import explained
from watershed.views.parsing import named_tables
from watershed.views.states import States
from watershed.views.supervisor import Supervisor

POLL_S: Final = 1.0  # between two readings of the clock
_CREATE: LiteralString = "CREATE TABLE IF NOT EXISTS {minutes} (at timestamptz PRIMARY KEY)"
_NOW: LiteralString = "date_bin('1 minute', coalesce(%(now)s::timestamptz, statement_timestamp()), timestamptz 'epoch')"
_IS_BEHIND: LiteralString = "SELECT coalesce(max(at) < {now}, true) FROM {minutes}"
# One statement for all of them, as the triggers of views run for each statement.
_INSERT: LiteralString = """
INSERT INTO {minutes} (at)
SELECT generate_series(greatest({now} - make_interval(hours => 24 * %(days)s), {since}), {now}, interval '1 minute')
ON CONFLICT DO NOTHING
"""
_DELETE: LiteralString = "DELETE FROM {minutes} WHERE at < {now} - make_interval(hours => 24 * %(days)s)"
_SINCE: LiteralString = "(SELECT max(at) FROM {minutes})"


class ClockBase(States):
    """A connection to the base of a clock. Methods raise SinkError for a database that does not answer."""

    def lock(self, view: str) -> bool:
        """Takes the lock as for a view, but listens for no changes."""
        is_locked = super().lock(view)
        with explained():
            self._connection.execute("UNLISTEN *")
        return is_locked

    def create_minutes(self) -> None:
        with explained():
            self._connection.execute(self._of_minutes(_CREATE))

    def advance(self, days: int, *, is_first: bool = False, now: str | None = None) -> int:
        """Inserts the minutes since the last one, and deletes those before the horizon. Returns how many are new.
        `is_first`: fills gaps, too, down to a horizon that may have been nearer. `now`: instead of the server's
        clock."""
        values = {"days": days, "now": now}
        with explained(), self._connection.transaction():
            row = self._connection.execute(self._of_minutes(_IS_BEHIND), values).fetchone()
            if not is_first and row == (False,):
                return 0
            since = sql.SQL("NULL") if is_first else self._of_minutes(_SINCE)
            count = self._connection.execute(self._of_minutes(_INSERT, since=since), values).rowcount
            self._connection.execute(self._of_minutes(_DELETE), values)
        return count

    def _of_minutes(self, text: LiteralString, **parts: sql.Composable) -> sql.Composed:
        minutes = sql.Identifier(self.schema, MINUTES.name)
        return sql.SQL(text).format(minutes=minutes, now=sql.SQL(_NOW), **parts)


class ClockJob:
    """Implements Job. Its base has the lock of the clock."""

    def __init__(self, base: ClockBase, days: int) -> None:
        self._base = base
        self._days = days

    def start(self) -> None:
        self._base.create_minutes()
        self._base.advance(self._days, is_first=True)

    def step(self) -> bool:
        self._base.advance(self._days)
        return False

    def wait(self) -> None:
        self._base.wait(POLL_S)

    def close(self) -> None:
        """Does nothing: nothing is open."""


class ClockSupervisor(Supervisor[ClockBase]):
    """Keeps the clock of one base until the process is to end. Another process is a standby."""

    def __init__(self, settings: Config, base: str) -> None:
        section = sink_config(settings.sinks, base)
        assert isinstance(section, SqlConfig), "the configuration was checked"
        super().__init__("clock", str(MINUTES), partial(ClockBase, section, settings.topics.prefix))
        self._days = settings.clock.days

    def _open_job(self, base: ClockBase) -> ClockJob:
        return ClockJob(base, self._days)


def bases_with_clock(settings: Config, views: list[str]) -> list[str]:
    """Returns the bases of those of the views that read the clock. Ignores text that is not a query."""
    found = set()
    for name in views:
        with suppress(ConfigError):
            if MINUTES in named_tables(name, settings.views[name].sql):
                found.add(settings.views[name].base)
    return sorted(found)

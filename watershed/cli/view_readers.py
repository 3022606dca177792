"""Readers of the state of views and event logs, for monitoring, which does not know their bases and tables."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig, sink_config
from sinks.errors import SinkError
from watershed.status.facts import ViewReader
from watershed.status.view_facts import ViewFacts
from watershed.views.event_log_base import EventLogFigures
from watershed.views.states import ViewFigures

CONNECT_TIMEOUT_S: Final = 3  # a slower base is shown as unreachable
Figures = TypeVar("Figures", bound=ViewFigures | EventLogFigures)


def view_readers(settings: Config) -> list[ViewReader]:
    """Returns a reader for each base that has views, and for each event log."""
    views: dict[str, list[str]] = {}
    for name, section in settings.views.items():
        views.setdefault(section.base, []).append(name)
    of_bases: list[ViewReader] = [_of_base(settings, base, tuple(names)) for base, names in views.items()]
    return [*of_bases, *(_of_log(settings, log) for log in settings.event_logs)]


def _of_base(settings: Config, base: str, views: tuple[str, ...]) -> ViewReader:
    section = sink_config(settings.sinks, base)
    assert isinstance(section, SqlConfig), "the configuration was checked"
    connect = partial(ViewFigures, section, settings.topics.prefix, CONNECT_TIMEOUT_S)
    return _FigureReader(views, connect, lambda figures: {name: figures.of(name) for name in views})


def _of_log(settings: Config, log: str) -> ViewReader:
    connect = partial(EventLogFigures, settings, log, CONNECT_TIMEOUT_S)
    return _FigureReader((log,), connect, lambda figures: {log: figures.counts()})


class _FigureReader(Generic[Figures]):
    """Implements ViewReader. Connects when it reads, and again after an error."""

    def __init__(
        self,
        views: tuple[str, ...],
        connect: Callable[[], Figures],
        facts: Callable[[Figures], Mapping[str, ViewFacts]],
    ) -> None:
        self.views = views
        self._connect = connect
        self._facts = facts
        self._figures: Figures | None = None

    def read(self) -> Mapping[str, ViewFacts]:
        try:
            self._figures = self._figures or self._connect()
            return self._facts(self._figures)
        except SinkError:
            self.close()
            raise

    def close(self) -> None:
        if self._figures is not None:
            self._figures.close()
        self._figures = None

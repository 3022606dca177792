"""Lets the status observe views and event logs: it knows neither their bases nor their tables there."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdc.config.settings import Config
from cdc.config.sink_settings import SqlConfig, sink_config
from cdc.model.errors import SinkError
from cdc.status.facts import ViewFacts, ViewReader

if TYPE_CHECKING:
    from views.event_log_figures import EventLogFigures
    from views.figures import Counts, ViewFigures

CONNECT_TIMEOUT_S: Final = 3  # of the status, which shows a slower base as unreachable meanwhile


def view_readers(settings: Config) -> list[ViewReader]:
    """Returns a reader for each base that has views, and for each event log."""
    views: dict[str, list[str]] = {}
    for name, section in settings.views.items():
        views.setdefault(section.base, []).append(name)
    of_bases: list[ViewReader] = [_BaseReader(settings, base, names) for base, names in views.items()]
    return [*of_bases, *(_LogReader(settings, log) for log in settings.event_logs)]


class _BaseReader:
    """Implements ViewReader. Connects when it reads, and again after an error."""

    def __init__(self, settings: Config, base: str, views: Sequence[str]) -> None:
        section = sink_config(settings.sinks, base)
        assert isinstance(section, SqlConfig), "the configuration was checked"
        self.views = tuple(views)
        self._section = section
        self._prefix = settings.topics.prefix
        self._figures: ViewFigures | None = None

    def read(self) -> Mapping[str, ViewFacts]:
        from views.figures import ViewFigures

        try:
            self._figures = self._figures or ViewFigures(self._section, self._prefix, CONNECT_TIMEOUT_S)
            return {name: _facts(self._figures.of(name)) for name in self.views}
        except SinkError:
            self.close()
            raise

    def close(self) -> None:
        if self._figures is not None:
            self._figures.close()
        self._figures = None


class _LogReader:
    """Implements ViewReader for one event log, whose topics are observed, too."""

    def __init__(self, settings: Config, log: str) -> None:
        self.views = (log,)
        self._settings = settings
        self._figures: EventLogFigures | None = None

    def read(self) -> Mapping[str, ViewFacts]:
        from views.event_log_figures import EventLogFigures

        (log,) = self.views
        try:
            self._figures = self._figures or EventLogFigures(self._settings, log, CONNECT_TIMEOUT_S)
            return {log: _facts(self._figures.counts())}
        except SinkError:
            self.close()
            raise

    def close(self) -> None:
        if self._figures is not None:
            self._figures.close()
        self._figures = None


def _facts(counts: "Counts") -> ViewFacts:
    return ViewFacts(
        state=counts.state,
        is_kept=counts.is_kept,
        changes=counts.changes,
        oldest_s=counts.oldest_s,
        keys=counts.keys,
        rejected=counts.rejected,
        written_s=counts.applied_s,
        error=counts.error or "",
        next=counts.next or "",
        failing_s=counts.failing_s,
        behind=counts.behind,
    )

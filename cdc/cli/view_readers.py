"""Lets the status observe views: it knows neither their bases nor their tables there."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdc.config.settings import Config
from cdc.config.sink_settings import SqlConfig, sink_config
from cdc.model.errors import SinkError
from cdc.status.facts import ViewFacts, ViewReader

if TYPE_CHECKING:
    from views.figures import Counts, ViewFigures

CONNECT_TIMEOUT_S: Final = 3  # of the status, which shows a slower base as unreachable meanwhile


def view_readers(settings: Config) -> list[ViewReader]:
    """Returns a reader for each base that has views."""
    views: dict[str, list[str]] = {}
    for name, section in settings.views.items():
        views.setdefault(section.base, []).append(name)
    return [_BaseReader(settings, base, names) for base, names in views.items()]


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
    )

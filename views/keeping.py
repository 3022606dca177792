"""Keeps one view until the process is to end, over servers that are away."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

import structlog

from cdc.config.view_settings import ViewConfig
from cdc.model.errors import ConfigError, RefusedError, SinkError, WatershedError
from views.base import Base
from views.gathering import Gathering
from views.maintainer import ViewMaintainer, define, kept_elsewhere
from views.targets import Target

log = structlog.get_logger(__name__)

RETRY_S_MIN: Final = 2.0
RETRY_S_MAX: Final = 30.0


class ViewKeeper:
    """One view. After an error its connections are opened again, so that what it then does rests on its lock."""

    def __init__(
        self,
        name: str,
        config: ViewConfig,
        open_base: Callable[[], Base],
        open_target: Callable[[], Target],
        wait_for_base: Callable[[], None],
        gathering: Gathering | None = None,
    ) -> None:
        """`wait_for_base`, `gathering`: as for ViewMaintainer."""
        self._name = name
        self._config = config
        self._open_base = open_base
        self._open_target = open_target
        self._wait_for_base = wait_for_base
        self._gathering = gathering
        self._waits_for = ""  # the last error, since which nothing was done
        self._pause_s = RETRY_S_MIN

    def keep(self, ending: threading.Event) -> None:
        """Returns when the process is to end. Raises ConfigError and RefusedError, which are noted with the view; after
        any other error of ours it goes on, and logs each once."""
        while not ending.is_set():
            try:
                with self._open_base() as base:
                    self._keep(base, ending)
            except (ConfigError, RefusedError):
                raise
            except WatershedError as error:
                self._wait(error, ending)

    def _keep(self, base: Base, ending: threading.Event) -> None:
        base.install()
        if not base.lock(self._name):  # nothing is noted: the status is the other process's
            raise kept_elsewhere(self._name)
        try:
            definition = define(self._name, self._config, base)
            with closing(
                ViewMaintainer(definition, base, self._open_target, self._wait_for_base, self._gathering)
            ) as maintainer:
                maintainer.start()
                is_first = True
                while not ending.is_set():
                    has_done = maintainer.step()
                    if is_first:
                        base.forget_error(self._name)
                        is_first = False
                    if not has_done:
                        maintainer.wait()
                    self._goes_on()
        except (ConfigError, RefusedError) as error:
            self._note(base, error, "failed")
            raise
        except WatershedError as error:
            self._note(base, error, None)
            raise

    def _note(self, base: Base, error: WatershedError, state: str | None) -> None:
        with suppress(SinkError):  # a base that does not answer
            base.note_error(self._name, error, state)

    def _goes_on(self) -> None:
        if self._waits_for:
            log.info("view goes on", view=self._name)
        self._waits_for, self._pause_s = "", RETRY_S_MIN

    def _wait(self, error: WatershedError, ending: threading.Event) -> None:
        if error.message == self._waits_for:
            self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        elif not ending.is_set():
            log.warning("view waits", view=self._name, error=error.message, next=error.hint)
            self._waits_for, self._pause_s = error.message, RETRY_S_MIN
        ending.wait(self._pause_s)

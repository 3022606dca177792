"""Keeps one view, or one event log, until the process is to end, over servers that are away."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final, Generic, Protocol, TypeVar

import structlog

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError, WatershedError
from sinks.errors import RefusedError, SinkError
from watershed.views.base import Base
from watershed.views.maintainer import ViewMaintainer, define, locked_elsewhere
from watershed.views.states import States
from watershed.views.target import Gathering, TargetGenerations, ViewTarget

log = structlog.get_logger(__name__)

RETRY_S_MIN: Final = 2.0
RETRY_S_MAX: Final = 30.0
OwnBase = TypeVar("OwnBase", bound=States)


class SupervisedJob(Protocol):
    """The work of a keeper between two errors."""

    def start(self) -> None: ...

    def step(self) -> bool:
        """Processes what is pending. Returns False if there was nothing."""

    def wait(self) -> None:
        """Waits until there may be something to do, for about a second at most."""

    def close(self) -> None: ...


class Supervisor(ABC, Generic[OwnBase]):
    """One view or log. After an error its connections are opened again, so that what it then does rests on its lock."""

    def __init__(self, kind: str, name: str, open_base: Callable[[], OwnBase]) -> None:
        """`kind`: view or event log."""
        self._kind = kind
        self._name = name
        self._open_base = open_base
        self._waits_for = ""  # the last error, since which nothing was done
        self._pause_s = RETRY_S_MIN

    def run(self, ending: threading.Event) -> None:
        """Returns when the process is to end. Raises ConfigError and RefusedError, which are noted with the view; after
        any other WatershedError it continues, and logs each error once."""
        while not ending.is_set():
            try:
                with self._open_base() as base:
                    self._run_locked(base, ending)
            except (ConfigError, RefusedError):
                raise
            except WatershedError as error:
                self._wait(error, ending)

    @abstractmethod
    def _open_job(self, base: OwnBase) -> SupervisedJob:
        """Opens the job, whose connection to the base holds the lock."""

    def _run_locked(self, base: OwnBase, ending: threading.Event) -> None:
        base.install()
        if not base.lock(self._name):  # nothing is noted: the status is the other process's
            raise locked_elsewhere(self._kind, self._name)
        try:
            with closing(self._open_job(base)) as job:
                job.start()
                is_first = True
                while not ending.is_set():
                    has_done = job.step()
                    if is_first:
                        base.forget_error(self._name)
                        is_first = False
                    if not has_done:
                        job.wait()
                    self._goes_on()
        except (ConfigError, RefusedError) as error:
            self._note(base, error, "failed")
            raise
        except WatershedError as error:
            self._note(base, error, None)
            raise

    @property
    def _names(self) -> dict[str, str]:
        """Returns the log fields that name the view or log."""
        return {self._kind.replace(" ", "_"): self._name}

    def _note(self, base: OwnBase, error: WatershedError, state: str | None) -> None:
        with suppress(SinkError):  # a base that does not answer
            base.note_error(self._name, error, state)

    def _goes_on(self) -> None:
        if self._waits_for:
            log.info(f"{self._kind} continues", **self._names)
        self._waits_for, self._pause_s = "", RETRY_S_MIN

    def _wait(self, error: WatershedError, ending: threading.Event) -> None:
        if error.message == self._waits_for:
            self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        elif not ending.is_set():
            log.warning(f"{self._kind} waits", **self._names, error=error.message, next=error.hint)
            self._waits_for, self._pause_s = error.message, RETRY_S_MIN
        ending.wait(self._pause_s)


class ViewSupervisor(Supervisor[Base]):
    """One view."""

    def __init__(
        self,
        name: str,
        config: ViewConfig,
        open_base: Callable[[], Base],
        open_target: Callable[[], ViewTarget],
        wait_for_base: Callable[[], None],
        gathering: Gathering | None = None,
        generations: TargetGenerations | None = None,
    ) -> None:
        """`wait_for_base`, `gathering`, `generations`: as for ViewMaintainer."""
        super().__init__("view", name, open_base)
        self._config = config
        self._open_target = open_target
        self._wait_for_base = wait_for_base
        self._gathering = gathering
        self._generations = generations

    def _open_job(self, base: Base) -> ViewMaintainer:
        definition = define(self._name, self._config, base)
        return ViewMaintainer(
            definition, base, self._open_target, self._wait_for_base, self._gathering, self._generations
        )

"""The configuration file of sinks that run, which is read again on SIGHUP, and when capture has taken up its own."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from cdc.model.errors import ConfigError, WatershedError
from sinks.shaping.functions.versions import installed_versions

log = structlog.get_logger(__name__)

FIXED: Final = ("kafka", "topics", "spark")  # on which the process and all of its sinks rest
LATER: Final = ("http", "verify", "telemetry")  # which the process has read, and that concern no sink


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """The configuration of one sink."""

    number: int  # 0 at first; another one after each change that concerns the sink
    config: Config


class SinksFile:
    """The configuration in force of each sink of the process. Called from any thread."""

    def __init__(self, config: Config, names: Sequence[str], reread: Callable[[], Config] | None = None) -> None:
        """`reread`: reads the file; raises ConfigError. None: there is no file."""
        self._lock = threading.Lock()
        self._reread = reread
        self._last = config
        self._of = {name: SinkConfig(0, config) for name in names}
        self._obeyed = {0}  # ReloadRecords, of which workers see the last one at different times; 0: none

    def of(self, name: str) -> SinkConfig:
        return self._of[name]

    def follow(self, asked_us: int) -> None:
        """Reads the file again if this request was not obeyed yet (ReloadRecord.requested_us)."""
        with self._lock:
            if asked_us in self._obeyed:
                return
            self._obeyed.add(asked_us)
        self.reload()

    def reload(self) -> None:
        """Reads the file again. With a mistake in it, the configuration in force stays."""
        if self._reread is None:
            return
        with self._lock:
            try:
                now = self._reread()
                changed = self._changed(now)
            except WatershedError as error:
                problem, hint = f"{error.message}: the configuration in force stays", error.hint
            else:
                for section in LATER:
                    if getattr(now, section) != getattr(self._last, section):
                        log.warning("a section takes effect when the process is started again", section=section)
                self._last = now
                for name in changed:
                    self._of[name] = SinkConfig(self._of[name].number + 1, now)
                log.info("configuration read again", sinks=" ".join(changed) or "nothing has changed for sinks")
                self._look_at_functions()
                return
        log.error("the configuration was not taken up", error=problem, next=hint)

    def _look_at_functions(self) -> None:
        """Says which functions were installed again: this process goes on with the code that it has imported."""
        try:
            used = {name: one.config.sinks[name].function_versions for name, one in self._of.items()}
            if not (imported := {function: at for versions in used.values() for function, at in versions.items()}):
                return
            installed = installed_versions(imported)
        except WatershedError as error:
            log.warning("functions of mappings can't be looked at", error=error.message, next=error.hint)
            return
        for function, version in imported.items():
            if installed[function] != version:
                log.warning(
                    f"another version of function {function} is installed: this process keeps the one that it has "
                    "imported",
                    imported=version,
                    installed=installed[function],
                    sinks=" ".join(name for name, versions in used.items() if function in versions),
                    next="start the sinks again: they then build the tables that use it",
                )

    def _changed(self, now: Config) -> list[str]:
        """Returns the sinks whose section differs. Raises ConfigError for what can't change now."""
        for fixed in FIXED:
            if getattr(now, fixed) != getattr(self._last, fixed):
                raise ConfigError(f"{fixed} can't change while sinks run", "start the sinks again")
        changed = []
        for name, then in self._of.items():
            section, before = sink_config(now.sinks, name), then.config.sinks[name]
            if section.type != before.type:
                raise ConfigError(f"the type of sink {name} can't change while it runs", "start the sinks again")
            if section != before:
                changed.append(name)
        return changed

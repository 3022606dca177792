"""The configuration as commands would read it now: it may be changed, and taken up by `cdc reload`, while a server
runs. A mask that was added since has to count for what the server shows."""

import threading
from pathlib import Path

import structlog

from cdc.config.config_file import Config, load_config
from cdc.model.errors import ConfigError

log = structlog.get_logger(__name__)

Stamp = tuple[int, int, int]


class CurrentConfig:
    """Reads the file again when it has changed. While it has a mistake, the last configuration without one counts.
    Called from any thread."""

    def __init__(self, config: Config, file: Path) -> None:
        """`config`: what was read from the file."""
        self._config = config
        self._file = file
        self._lock = threading.Lock()
        self._stamp = self._stamped()

    def __call__(self) -> Config:
        with self._lock:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._config = load_config(self._file)
                except ConfigError as error:
                    log.warning("the changed configuration file has a mistake", error=error.message, next=error.hint)
            return self._config

    def _stamped(self) -> Stamp | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

"""`cdc view run` as a process under test."""

import signal
import subprocess
import sys
from typing import Final

from tests.support.captured import Captured
from tests.support.forked import Forked, start

ENDS_S_MAX: Final = 20.0


class ViewProcess:
    """`cdc view run`. All processes of one folder write to the same log."""

    process: subprocess.Popen[bytes] | Forked

    def __init__(self, captured: Captured, *views: str, is_forked: bool = True) -> None:
        """`is_forked`: starts quickly, but in the session of the tests. One that starts Spark has a session of its
        own."""
        config = captured.config()
        self._log = config.parent / "view.log"
        words = ["view", "run", *views, "--config", str(config)]
        with self._log.open("ab") as log:
            if is_forked:
                self.process = start(words, log, log)
            else:
                command = [sys.executable, "-m", "watershed", *words]
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def kill(self) -> None:
        """SIGKILL; a Java process that it has ends by itself. Nothing if it has ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def terminate(self) -> int:
        """Returns the exit code."""
        self.process.terminate()
        return self.process.wait(ENDS_S_MAX)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

"""The exit codes of `cdc`. Errors have their own (cdc/model/errors.py)."""

from typing import Final

FAILED: Final = 1  # the command failed, or found a problem that it is there to find
USAGE: Final = 2  # words or configuration can't be used; nothing was done
UNREACHABLE: Final = 3  # a server does not answer
GAP: Final = 4  # history may hide a change
PARTIAL: Final = 6  # a part was done, and a part was not (5 is kept for drift)
INTERRUPTED: Final = 130  # Ctrl-C, as shells have it

EPILOG: Final = (
    "Exit codes: 0 done; 1 failed, or something is wrong; 2 wrong words or configuration; 3 a server does not answer; "
    "4 a gap in history; 6 partly done; 130 interrupted."
)

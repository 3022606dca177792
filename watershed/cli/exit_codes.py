"""The exit codes of `cdc`. The exit code of an error is in its class (cdc/model/errors.py)."""

from typing import Final

FAILED: Final = 1  # the command failed, or it found a problem of the kind that it checks for
USAGE: Final = 2  # the command line or the configuration can't be used; nothing was done
UNREACHABLE: Final = 3  # a server does not answer
GAP: Final = 4  # history may hide a change
DRIFT: Final = 5  # a store differs from the source
PARTIAL: Final = 6  # a part was done, and a part was not
INTERRUPTED: Final = 130  # Ctrl-C, as in shells

EPILOG: Final = (
    "Exit codes: 0 done; 1 failed, or a problem was found; 2 wrong command line or configuration; 3 a server does not "
    "answer; 4 changes may be missing; 5 a store differs from the source; 6 partly done; 130 interrupted."
)

"""The exit codes of `cdc`. The exit code of an error is in its class (cdc/model/errors.py).

A script that repeats a command repeats it after UNREACHABLE and NOT_IN_TIME, the same command without a change. After
any other code somebody has to correct something first: the sentence on standard error says what.
"""

from typing import Final

FAILED: Final = 1  # the command failed, or it found a problem of the kind that it checks for
USAGE: Final = 2  # the command line or the configuration can't be used; nothing was done
UNREACHABLE: Final = 3  # a server does not answer
GAP: Final = 4  # history may hide a change
DRIFT: Final = 5  # a store differs from the source
PARTIAL: Final = 6  # a part was done, and a part was not
NOT_IN_TIME: Final = 7  # not reached within --timeout: it goes on, or can be asked for again
INTERRUPTED: Final = 130  # Ctrl-C, as in shells
WORTH_A_RETRY: Final = frozenset({UNREACHABLE, NOT_IN_TIME})

EPILOG: Final = (
    "Exit codes: 0 done; 1 failed, or a problem was found; 2 wrong command line or configuration; 3 a server does not "
    "answer; 4 changes may be missing; 5 a store differs from the source; 6 partly done; 7 not in time; "
    "130 interrupted. After 3 and 7 the same command may be tried again; after the others something has to be "
    "corrected first."
)

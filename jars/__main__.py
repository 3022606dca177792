"""Prefetches jars, or writes their lock file again.

python -m jars           fetch and verify everything in the lock file
python -m jars lock      resolve the wanted jars again and write the lock file
"""

import sys

from rich.console import Console

from cdc.model.errors import WatershedError
from jars.lock import read_lock
from jars.resolver import default_cache, resolve_sets


def main(arguments: list[str]) -> int:
    console = Console(stderr=True)
    try:
        match arguments:
            case []:
                lock = read_lock()
                resolve_sets(lock.set_names, progress=console, lock=lock)
                console.print(f"{len(lock.jars)} jars are in {default_cache()} and as locked", soft_wrap=True)
            case ["lock"]:
                from jars.relock import relock

                relock(console)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except WatershedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

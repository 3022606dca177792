"""Prefetches jars, or writes their lock file again.

python -m spark_jobs.jars        fetch and verify what is in the lock file, without the sets that are loaded on demand
python -m spark_jobs.jars aws    the same with one set: aws is for warehouses on S3 and for the catalog Glue
python -m spark_jobs.jars lock   resolve what is wanted again and write the lock file
"""

import sys

from rich.console import Console

from cdc.model.errors import WatershedError
from spark_jobs.jars.lock import ON_DEMAND, read_lock
from spark_jobs.jars.resolver import default_cache, resolve_sets


def main(arguments: list[str]) -> int:
    console = Console(stderr=True)
    try:
        lock = read_lock()
        match arguments:
            case []:
                wanted = [name for name in lock.set_names if name not in ON_DEMAND]
                found = resolve_sets(wanted, progress=console, lock=lock)
                count = len({jar for jars in found.values() for jar in jars})
                console.print(f"{count} jars are in {default_cache()}, with the locked checksums", soft_wrap=True)
            case [name] if name in lock.set_names:
                jars = resolve_sets([name], progress=console, lock=lock)[name]
                console.print(
                    f"{len(jars)} jars of {name} are in {default_cache()}, with the locked checksums", soft_wrap=True
                )
            case ["lock"]:
                from spark_jobs.jars.relock import relock

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

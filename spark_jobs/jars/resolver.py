"""Jars from the lock file, fetched once, verified, and kept in a cache that all clones on the machine share."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from cdc.model.errors import StackError
from spark_jobs.jars.lock import Jar, Lock, read_lock
from spark_jobs.jars.maven import MIRROR_VARIABLE, MavenRepository

CACHE_VARIABLE = "WATERSHED_CACHE"
WORKERS = 8  # most jars are small: the wait is for answers, not for bytes
TRIES = 3


class Repository(Protocol):
    """A source of jars."""

    name: str  # for messages; never an address, which may hold a password

    def fetch(self, jar: Jar, folder: Path, received: Callable[[int], None]) -> Path:
        """Writes the jar to a file below `folder` and returns the file. `received` is called with the size of each
        piece in bytes. Raises OSError or RuntimeError.
        """


def default_cache() -> Path:
    """Returns `$WATERSHED_CACHE`, or else `watershed` in the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "watershed"


def mirror() -> str | None:
    """Returns the root of the repository to use instead of the public one."""
    return os.environ.get(MIRROR_VARIABLE)


def resolve(set_name: str, cache: Path | None = None, progress: Console | None = None) -> list[Path]:
    """Returns the set's jars as files, in the lock's order. Missing jars are fetched, with a bar on `progress`. Raises
    StackError if a jar can't be fetched or differs from the lock.
    """
    return resolve_sets([set_name], cache, progress)[set_name]


def resolve_sets(
    set_names: Sequence[str],
    cache: Path | None = None,
    progress: Console | None = None,
    *,
    repository: Repository | None = None,
    lock: Lock | None = None,
) -> dict[str, list[Path]]:
    """Returns the jars of several sets, like `resolve`. Another process may fill the same cache: each jar is written
    elsewhere, verified, and renamed.
    """
    lock = lock or read_lock()
    folder = (cache or default_cache()) / "jars"
    sets = {name: [jar for jar, _ in lock.placed(name)] for name in set_names}
    wanted = list(dict.fromkeys(jar for jars in sets.values() for jar in jars))
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            present = pool.map(lambda jar: _is_good(folder / jar.coordinates.path, jar), wanted)
            missing = [jar for jar, good in zip(wanted, present, strict=True) if not good]
        if missing:
            _fetch_all(missing, folder, repository or _default_repository(), progress)
    except OSError as error:
        raise _unusable(folder, error) from error
    return {name: [folder / jar.coordinates.path for jar in jars] for name, jars in sets.items()}


def missing_jars(set_names: Sequence[str], cache: Path | None = None, *, lock: Lock | None = None) -> list[Jar]:
    """Returns jars that the cache lacks, or holds damaged. Raises StackError if it can't be read."""
    lock = lock or read_lock()
    folder = (cache or default_cache()) / "jars"
    wanted = dict.fromkeys(jar for name in set_names for jar, _ in lock.placed(name))
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            good = pool.map(lambda jar: _is_good(folder / jar.coordinates.path, jar), wanted)
            return [jar for jar, is_good in zip(wanted, good, strict=True) if not is_good]
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> StackError:
    return StackError(
        f"the cache {folder} can't be used: {error.strerror}", f"name a folder that can be written in {CACHE_VARIABLE}"
    )


def _fetch_all(jars: Sequence[Jar], folder: Path, repository: Repository, console: Console | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(jar.size for jar in jars)
    with (
        _bar(console, f"fetching {len(jars)} jars", total) as received,
        # In the same file system as the jars' places: a rename must not become a copy.
        tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as staging,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        futures = [
            pool.submit(_fetch, jar, folder, Path(staging) / str(number), repository, received)
            for number, jar in enumerate(jars)
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # the first failure is the answer
            raise


def _fetch(jar: Jar, folder: Path, staging: Path, repository: Repository, received: Callable[[int], None]) -> None:
    target = folder / jar.coordinates.path
    for attempt in range(1, TRIES + 1):
        try:
            fetched = repository.fetch(jar, staging / str(attempt), received)
            break
        except (OSError, RuntimeError) as error:
            if attempt == TRIES:
                raise StackError(
                    f"{jar.coordinates} can't be had from {repository.name}: {_reason(error)}",
                    f"check the network, or name a mirror in {MIRROR_VARIABLE}; then run `python -m spark_jobs.jars`",
                ) from error
    if not _is_good(fetched, jar):
        raise StackError(
            f"{jar.coordinates} from {repository.name} is not the jar that was locked:"
            f" its SHA-256 is {_sha256(fetched)}, not {jar.sha256}",
            f"don't use that repository; name another in {MIRROR_VARIABLE}",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(target)


def _reason(error: Exception) -> str:
    """Returns the kind of failure. Its text is left out, because it contains the repository's address."""
    return "it is not there" if type(error) is RuntimeError else type(error).__name__


def _is_good(path: Path, jar: Jar) -> bool:
    """Verifies a jar. It is verified at each use: hashing all sets takes a fraction of a second."""
    try:
        return path.stat().st_size == jar.size and _sha256(path) == jar.sha256
    except FileNotFoundError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _bar(console: Console | None, title: str, total: int) -> Iterator[Callable[[int], None]]:
    if console is None:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def _default_repository() -> Repository:
    return MavenRepository(mirror())

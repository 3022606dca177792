"""What runs a campaign: episodes on servers of its own, one after the other, for so many minutes."""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from watershed.devstack.stack import Stack

RESULTS: Final = "episodes.jsonl"

Told = dict[str, Any]


@contextmanager
def servers(folder: Path) -> Iterator[Stack]:
    """Yields a stack of its own, whatever servers the environment names; its servers end with the campaign."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # PostgreSQL and OpenSearch may run under another account than ours
    with Stack(folder, given={}) as stack:
        yield stack


def run_episodes(
    about: str | None,
    name: str,
    episode: Callable[[int, Stack, Path], Told],
    is_true: Callable[[Told], bool] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """The exit code: whether what each episode told is as it should be; without `is_true` it raises where it is not.
    `about`: the campaign's docstring. Begun again, the campaign goes on with its next episode; `--seed` repeats one.
    `arguments`: the command line without what the campaign has read itself."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--folder", type=Path, default=Path(f".watershed/{name}"))
    parser.add_argument("--seed", type=int, help="this episode alone")
    parser.add_argument("--until-wrong", action="store_true", help="end with an episode that is not as it should be")
    asked = parser.parse_args(arguments)
    place: Path = asked.folder.absolute()  # also in addresses of files
    place.mkdir(parents=True, exist_ok=True)
    results = place / RESULTS
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    done = max((json.loads(line)["seed"] for line in lines), default=0)
    deadline = time.monotonic() + asked.minutes * 60
    are_true = True
    with servers(place / "servers") as stack:
        while time.monotonic() < deadline:
            done = done + 1 if asked.seed is None else asked.seed
            folder = place / f"episode-{done}"
            shutil.rmtree(folder, ignore_errors=True)
            reported = episode(done, stack, folder)
            are_true = are_true and (is_true is None or is_true(reported))
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(reported) + "\n")
            print(json.dumps(reported), flush=True)
            if asked.seed is not None or (asked.until_wrong and not are_true):
                break
    return 0 if are_true else 1

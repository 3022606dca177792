"""Whether the functions of mappings are the same wherever a sink runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from cdc.config.row_functions import row_function
from cdc.model.errors import ConfigError
from sinks.errors import SinkError

ASK_S_MAX: Final = 30.0  # in which a process imports them


def require_versions(versions: Mapping[str, str]) -> None:
    """Raises SinkError if a function has another version here than where the sink's job began (`versions`), and
    ConfigError if it is not installed here."""
    for name, version in versions.items():
        if (here := row_function(name).version) != version:
            raise SinkError(
                f"function {name} has version {here} on one machine or process of the sink, and version {version} "
                "where its job began",
                "install the same version of its package wherever sinks run, then start the sink again",
            )


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of these functions as a process that begins now imports them: this one may have imported
    others. Raises ConfigError if one can't be imported any more."""
    command = [sys.executable, "-m", __name__, *names]
    try:
        asked = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S_MAX,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        found = json.loads(asked.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        hint = "start the sinks again: their log then says what is wrong"
        raise ConfigError(f"functions can't be imported any more: {type(error).__name__}", hint) from error
    if "error" in found:
        raise ConfigError(found["error"], found["next"])
    return dict(found["versions"])


def main() -> None:
    try:
        found = {"versions": {name: row_function(name).version for name in sys.argv[1:]}}
    except ConfigError as error:
        print(json.dumps({"error": error.message, "next": error.hint}))
    else:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

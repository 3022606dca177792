"""Secrets from files, as containers, Kubernetes and systemd hand them to a process.

CDC_SECRETS names a folder. A file in it whose name is that of an environment variable, such as CDC__SOURCE__DSN, gives
the variable's value; the environment goes before it. Other files in the folder are not read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigError

FOLDER_VARIABLE: Final = "CDC_SECRETS"


def secret_files(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns variable → value, without the line end that editors add. Raises ConfigError that shows no value."""
    named = environment.get(FOLDER_VARIABLE)
    if not named:
        return {}
    folder = Path(named)
    path = folder
    try:
        found = {}
        for path in sorted(folder.iterdir()):
            if path.name.startswith(prefix):
                found[path.name] = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"can't read secrets from {path}: {why}",
            f"{FOLDER_VARIABLE} names a folder whose files the process may read, such as {prefix}SOURCE__DSN",
        ) from error
    return found

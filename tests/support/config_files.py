"""Writes and replaces configuration files, also while a running command may be reading them."""

from pathlib import Path
from tempfile import NamedTemporaryFile


def replace_text(path: Path, text: str) -> Path:
    """The file, from now on with this text: who opens it meanwhile reads the old or the new one, whole."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    return Path(file.name).replace(path)

"""Archives that are byte-equal whenever their files are: sorted names, one time, no owner, two modes."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

EXECUTABLE = 0o755
READABLE = 0o644


def pack(target: Path, files: Mapping[str, Path], time_s: int) -> None:
    """Writes a .tar.gz. `files`: name in the archive → file; `time_s`: every file's time, in Unix seconds."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            member.mtime = time_s
            member.mode = EXECUTABLE if path.stat().st_mode & 0o100 else READABLE
            with path.open("rb") as content:
                archive.addfile(member, content)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=time_s) as compressed:
        compressed.write(packed.getvalue())


def files_below(folder: Path, prefix: str) -> dict[str, Path]:
    """Returns `prefix/<path in the folder>` → file for all files."""
    return {f"{prefix}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .tar.gz that was made here."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")

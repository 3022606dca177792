"""python -m deploy.release [--dry-run] [--folder dist]"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.release.build import (
    CHECKSUMS,
    ROOT,
    Release,
    ReleaseError,
    build,
    commit_time,
    export,
    require_committed,
    version_of,
)


def main() -> None:
    """Builds the parts into the folder, which is emptied before, and prints their sizes and names."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="Build what a release consists of.")
    parser.add_argument("--dry-run", action="store_true", help="also with changes that are not committed or unreleased")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where to; emptied before (default: dist)")
    options = parser.parse_args()
    try:
        files = release(options.folder, is_dry_run=options.dry_run)
    except ReleaseError as error:
        sys.exit(f"error: {error}")
    for file in files:
        print(f"{file.stat().st_size:>10,}  {file}")


def release(folder: Path, *, is_dry_run: bool) -> list[Path]:
    """Raises ReleaseError; the folder is then as before."""
    if folder.exists() and any(folder.iterdir()) and not (folder / CHECKSUMS).exists():
        raise ReleaseError(f"{folder} has files that are no release\n  next: choose an empty folder with --folder")
    if not is_dry_run:
        require_committed(ROOT)
    with tempfile.TemporaryDirectory(prefix="watershed-release-") as name:
        source, work, target = (Path(name) / part for part in ("source", "work", "target"))
        for path in (source, work, target):
            path.mkdir()
        export(ROOT, source)
        built = build(Release(source, work, target, commit_time(ROOT), version_of(source), is_dry_run))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(target, folder)
    return [folder / file.name for file in built]


if __name__ == "__main__":
    main()

"""Sinks on a cluster: the arguments of spark-submit, and the program that it runs.

    spark-submit … spark_jobs/submit.py --config watershed.yml cache search

The program is the driver (client mode). Executors get our packages as an archive, and need the libraries that the
package's extras name in their Python.
"""

import argparse
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import cdc
import sinks
import spark_jobs
from spark_jobs.session import SETTINGS

ARCHIVE_NAME: Final = "watershed.zip"
_PACKAGES: Final = (cdc, sinks, spark_jobs)


def package_archive(folder: Path) -> Path:
    """Writes the archive of Watershed's packages for executors. It is written again each time."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE_NAME
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            assert package.__file__ is not None
            root = Path(package.__file__).parent
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    file.write(path, path.relative_to(root.parent))
    return archive


def submit_command(
    master: str, config: Path, names: Sequence[str], jars: Sequence[Path], archive: Path, extra: Sequence[str] = ()
) -> list[str]:
    """Returns the command line, which begins with the `spark-submit` of PySpark's own installation. `extra`: the user's
    options, which precede Watershed's.
    """
    settings = {
        **SETTINGS,
        "spark.ui.enabled": "true",
        # Executors start Python in the folder to which Spark has copied the archive.
        "spark.executorEnv.PYTHONPATH": ARCHIVE_NAME,
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", master, "--name", "watershed", "--py-files", str(archive)),
        *(("--jars", ",".join(map(str, jars))) if jars else ()),
        *options,
        *extra,
        __file__,
        *("--config", str(config.absolute())),
        *names,
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the driver. Returns the process's exit code; ends the process itself once the sinks have run."""
    from cdc.config.config_file import load_config
    from cdc.config.logs import configure_logs
    from cdc.model.errors import WatershedError
    from cdc.telemetry.process import open_telemetry
    from spark_jobs.runner import run_sinks

    parser = argparse.ArgumentParser(prog="watershed-sinks", description="Run sinks as a job of spark-submit.")
    parser.add_argument("--config", type=Path, default=Path("watershed.yml"))
    parser.add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args(arguments)
    configure_logs(level=os.environ.get("CDC_LOG_LEVEL", "info"), as_json=bool(os.environ.get("CDC_LOG_JSON")))
    try:
        config = load_config(options.config)
        telemetry = open_telemetry(config.telemetry, config.topics.prefix, "watershed-sinks", has_lineage=True)
        run_sinks(config, options.names, reread=lambda: load_config(options.config), telemetry=telemetry)
    except WatershedError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())

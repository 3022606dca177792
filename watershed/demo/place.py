"""The demo's folder and the configuration file in it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import yaml

from cdc.model.errors import ConfigError
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.instance import PortClaims, choose_ports, is_free
from watershed.devstack.state import LOCK_FILE, take_lock

BASE: Final = "base"  # the sink that keeps the tables which the views read
BASE_DATABASE: Final = "shop_views"  # on the shop's server
_MARKER: Final = "made-by-cdc-demo"


@contextmanager
def demo_folder(folder: Path) -> Iterator[Path]:
    """Locks and empties the demo's folder while it is used, and yields it. Files of an earlier demo are deleted. Raises
    ConfigError for a folder with other files, StackError while another demo uses it.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARKER).exists():
        raise ConfigError(f"{folder} has files that the demo did not create", "name another folder with --folder")
    lock = take_lock(folder)
    try:
        (folder / _MARKER).touch()
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name not in (LOCK_FILE, _MARKER):
                entry.unlink()
        (folder / "logs").mkdir()
        yield folder
    finally:
        lock.release()


def write_config(folder: Path, endpoints: Endpoints, *, has_views: bool = False) -> Path:
    """Writes the configuration file with which capture and sinks are started. Users can use it, too, while the servers
    run.
    """
    values = {
        "dsn": endpoints.dsn,
        "bootstrap_servers": endpoints.bootstrap_servers,
        "search": endpoints.opensearch_url,
        "cache": endpoints.redis_url,
        "base": urlunsplit(urlsplit(endpoints.dsn)._replace(path=f"/{BASE_DATABASE}")),
        "catalog": f"jdbc:sqlite:{folder / 'warehouse' / 'catalog.db'}",
        "tables": str(folder / "warehouse" / "tables"),
        "checkpoints": str(folder / "checkpoints"),
        "port": free_port(8480),
        "sink_port": free_port(8481),
        "view_port": free_port(8482),
    }
    content = _filled("pipeline.yml", values)
    if has_views:
        added = _filled("views.yml", values)
        content["source"]["tables"].append("public.saved_searches")
        content["sinks"] |= added["sinks"]
        content["views"] = added["views"]
    path = folder / "watershed.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    path.chmod(0o600)  # addresses may hold passwords
    return path


def free_port(wanted: int) -> int:
    """Returns the wanted port if nobody has it, otherwise one that nobody has now."""
    with PortClaims() as claims:
        return wanted if is_free(wanted) else choose_ports(1, claims)[0]


def _filled(name: str, values: dict[str, Any]) -> Any:
    text = Template(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return yaml.safe_load(text.substitute({key: json.dumps(value) for key, value in values.items()}))

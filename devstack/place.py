"""Where a server lives: its folder, its ports, the account it runs under, and the files it runs from."""

import fcntl
import hashlib
import importlib.util
import os
import random
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc.model.errors import StackError

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections: a server that is down must not find a
# client of another one on its port.
PORT_RANGE = range(15_000, 32_000)
NOBODY = 65534
# Entered by all, and kept over a restart of the machine. What we make there is checked to be ours.
PUBLIC_FOLDER = Path("/var/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Place:
    """One server's own."""

    folder: Path
    ports: Mapping[str, int]
    identity: str  # of the stack; 22 characters of URL-safe base64, as Kafka wants a cluster's id
    unprivileged: int | None  # uid for servers that refuse to run as root; None: as we are
    cache: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def own(self, *names: str) -> Path:
        """A folder within this one, made if missing, that an unprivileged server may write to."""
        path = self.folder.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        if self.unprivileged is not None:
            os.chown(path, self.unprivileged, self.unprivileged)
        return path

    def public(self, source: Path) -> Path:
        """`source`, or a copy in this place where the unprivileged account could not reach it."""
        if self.unprivileged is None or reachable(source):
            return source
        copy = self.folder.parent / "packages" / source.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.parent.chmod(0o711)  # whatever the umask
            partial = Path(tempfile.mkdtemp(prefix=".copy-", dir=copy.parent)) / source.name
            if source.is_dir():
                shutil.copytree(source, partial, symlinks=True, copy_function=link_or_copy)
            else:
                link_or_copy(source, partial)
            grant_read(partial)
            partial.replace(copy)
            partial.parent.rmdir()
        return copy


def unprivileged_account() -> int | None:
    """PostgreSQL and OpenSearch refuse to run as root."""
    return NOBODY if os.geteuid() == 0 else None


def servers_home(folder: Path) -> Path:
    """Where the servers' folders go: `folder` itself, or, for root in a folder that others can't enter, one beneath
    /var/tmp that belongs to it."""
    if unprivileged_account() is None or reachable(folder):
        return folder
    return PUBLIC_FOLDER / f"watershed-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def make_home(folder: Path, identity: str) -> None:
    """Make the servers' home; empty it, if it was left there by an earlier stack whose own folder was deleted. Raises
    StackError for one that another user made."""
    home = servers_home(folder)
    if home == folder:
        return
    owner = home / "identity"
    if home.is_symlink() or (home.exists() and home.stat().st_uid != os.geteuid()):
        raise StackError(f"{home} belongs to another user", f"delete it, or make {folder} accessible to others")
    if not owner.exists() or owner.read_text(encoding="ascii") != identity:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        home.chmod(0o711)  # whatever the umask
        owner.write_text(identity, encoding="ascii")


def reachable(path: Path) -> bool:
    """Whether an account that owns nothing can get to `path`. What does not exist yet is no obstacle."""
    path = path.resolve()
    folders = [p for p in (path, *path.parents) if p.is_dir()]
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def grant_read(tree: Path) -> None:
    """Let all accounts read it, whatever the umask was when it was made."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            extra = stat.S_IXOTH if path.is_dir() else 0
            path.chmod(path.stat().st_mode | stat.S_IROTH | extra)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """A hard link costs nothing and, unlike a symbolic one, asks for no right to the folders above the source."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def package_folder(name: str) -> Path:
    """Folder of an installed Python package, found without importing it. Raises StackError if it isn't installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(f"the package {name} is not installed", "pip install 'watershed-cdc[stack]'")
    return Path(spec.submodule_search_locations[0])


class PortClaims:
    """Ports that are ours also while nothing listens on them: a server that is down finds its port free when it
    starts again, whatever other stacks of this user start meanwhile. Until released, or until this process ends."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # port → descriptor of its lock file

    def claim(self, port: int) -> bool:
        """Whether it is ours now, or was."""
        if port in self._files:
            return True
        folder = PUBLIC_FOLDER / f"watershed-ports-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._files[port] = descriptor
        return True

    def release(self, port: int | None = None) -> None:
        """One, or all."""
        for claimed in list(self._files) if port is None else [port]:
            os.close(self._files.pop(claimed))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def choose_ports(count: int, claims: PortClaims, taken: Iterable[int] = ()) -> list[int]:
    """Free ports, at random, claimed before they are looked at."""
    candidates = random.sample(PORT_RANGE, len(PORT_RANGE))
    avoided = set(taken)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return found
        if port not in avoided and claims.claim(port):
            if is_free(port):
                found.append(port)
            else:
                claims.release(port)
    raise StackError(f"no free port between {PORT_RANGE.start} and {PORT_RANGE.stop}", "stop some servers")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections don't count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
